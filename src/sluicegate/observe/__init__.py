"""What an operator sees: events of decisions, metrics, the refusal log and the status.

The folder also has the dashboard for Grafana (`dashboard.json`) and the alert rules for Prometheus (`alerts.yml`).
"""
