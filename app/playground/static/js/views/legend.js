// Which colour is whose, and how many tokens came from each source: most first, as `spectra generate --color` has it.

import { colourOf } from "./colours.js";
import { html } from "./dom.js";

/** Show the legend of counts (source -> tokens; null: the target itself) as items of the list `element`. */
export function showLegend(element, bySource) {
  const total = [...bySource.values()].reduce((sum, n) => sum + n, 0);
  const drafted = [...bySource].filter(([source]) => source !== null).sort((one, other) => other[1] - one[1]);
  const rows = [...drafted, [null, bySource.get(null) ?? 0]];
  element.replaceChildren(
    ...rows.map(([source, n]) =>
      html(
        "li",
        {},
        html("span", { class: `swatch ${colourOf(source)}` }),
        source ?? "the target itself",
        html("span", { class: "quiet" }, ` ${n} (${total ? Math.round((100 * n) / total) : 0} %)`),
      ),
    ),
  );
}
