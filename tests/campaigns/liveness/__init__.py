"""Random schedules of calls against a scripted peer: no call waits forever, and no message is lost, doubled or torn."""
