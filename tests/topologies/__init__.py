"""A cluster and Sentinels under load, with every disturbance."""
