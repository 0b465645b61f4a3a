#!/bin/bash
# copy_model.sh FROM TO: copies the model $NAME from the folder FROM to TO, once: pods of a node take turns, and what one
# has copied the others find. Waits until FROM has the model, which is when its SHA256SUMS is there.
set -euo pipefail
source=$1/$NAME target=$2/$NAME
exec 9>"$2/.lock"
flock 9
if [ -e "$target/.complete" ]; then
  echo "$target is complete"
  exit 0
fi
[ -e "$source/SHA256SUMS" ] || echo "waiting for $source"
until [ -e "$source/SHA256SUMS" ]; do sleep 2; done
rm -rf "$2/.$NAME.partial" # a copy that broke off
mkdir "$2/.$NAME.partial"
# Four files at a time: one stream alone leaves most of a network file system's bandwidth unused
(cd "$source" && find . -type d -exec mkdir -p "$2/.$NAME.partial/{}" \; && find . -type f -print0) |
  xargs -0 -P 4 -I{} cp "$source/{}" "$2/.$NAME.partial/{}"
(cd "$2/.$NAME.partial" && sha256sum --quiet --check SHA256SUMS)
touch "$2/.$NAME.partial/.complete"
sync -f "$2"
mv "$2/.$NAME.partial" "$target"
echo "$target is complete"
