"""Random schedules of calls against a scripted peer: nobody waits for ever, and no message is lost, doubled or torn."""
