"""The parts that all web adapters share: settings, the gate, HTTP responses, and the state of one request."""
