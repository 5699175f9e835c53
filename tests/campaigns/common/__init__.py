"""What several campaigns use: runners, programs, calls of both kinds of API, frames."""
