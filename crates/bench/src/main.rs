//! `wirespeed-bench`: the native side of tests and benchmarks.

mod certificate;
mod descriptors;
mod echo;
mod load;
mod sans_io;

use std::process::ExitCode;

const HELP: &str = "\
The native side of wirespeed's tests and benchmarks.

Usage: wirespeed-bench COMMAND [OPTIONS]

Commands:
  echo    A WebSocket server on the loopback interface; see `wirespeed-bench echo --help`
  load    Load for such a server; see `wirespeed-bench load --help`
  sans-io The core without sockets, to be compared with others; see `wirespeed-bench sans-io --help`
  certificate FOLDER
          Writes server.pem, a certificate for 127.0.0.1 with its key, and authority.pem, who signed it

Options:
  -h, --help       Show this text
  -V, --version    Show the version
";

fn main() -> ExitCode {
    let mut arguments = lexopt::Parser::from_env();
    let result = match arguments.next() {
        Ok(Some(lexopt::Arg::Value(command))) if command == "echo" => echo::run(arguments),
        Ok(Some(lexopt::Arg::Value(command))) if command == "load" => load::run(arguments),
        Ok(Some(lexopt::Arg::Value(command))) if command == "sans-io" => sans_io::run(arguments),
        Ok(Some(lexopt::Arg::Value(command))) if command == "certificate" => certificate::run(arguments),
        Ok(Some(lexopt::Arg::Short('h') | lexopt::Arg::Long("help"))) => {
            show(HELP);
            Ok(())
        }
        Ok(Some(lexopt::Arg::Short('V') | lexopt::Arg::Long("version"))) => {
            show(concat!("wirespeed-bench ", env!("CARGO_PKG_VERSION"), "\n"));
            Ok(())
        }
        Ok(None) => Err("a command is missing; try --help".into()),
        Ok(Some(argument)) => Err(argument.unexpected().into()),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            warn(&error.to_string());
            ExitCode::from(2)
        }
    }
}

/// Writes a line to standard error; nobody may be reading it.
fn warn(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "wirespeed-bench: {text}");
}

/// Writes to standard output at once; a reader that is gone is no error.
fn show(text: &str) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
