"""Makes dashboards, and the resource with the alert rules, from what is edited: the boards, k8s/alerts/rules.yaml."""
