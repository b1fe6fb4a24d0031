"""What runs in the process of a framework's tests: one recorder for each test runner, one module for each insertion."""
