"""Pages for people, served by an ingress: the playground at ``/``, and one for operators."""
