//! `wirespeed-bench`: the native server and load generator of tests and benchmarks.

mod certificate;
mod descriptors;
mod echo;
mod load;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Native server and load generator of wirespeed's tests and benchmarks
#[derive(Parser)]
#[command(version, subcommand_required = true, arg_required_else_help = false)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Echo(echo::Options),
    Load(Box<load::Options>),
    /// Writes server.pem, a certificate for 127.0.0.1 with its key, and authority.pem, which signed it
    Certificate {
        /// The folder to write to
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::try_parse() {
        Ok(arguments) => arguments.command.run(),
        Err(error) if error.use_stderr() => Err(one_line(&error.to_string()).into()),
        Err(help) => {
            show(&help.to_string());
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            warn(&error.to_string());
            ExitCode::from(2)
        }
    }
}

impl Command {
    fn run(self) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Echo(options) => echo::run(&options),
            Self::Load(options) => load::run(*options),
            Self::Certificate { folder } => certificate::write(&folder),
        }
    }
}

/// Returns an error of the command line as one line, which calling programs show.
fn one_line(error: &str) -> String {
    let error = error.strip_prefix("error: ").unwrap_or(error);
    let lines: Vec<_> = error.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    format!("{}; try --help", lines.join(" "))
}

/// Parses a number that must be at least 1.
fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "a number of at least 1 is wanted".to_owned())
}

/// Writes a line to standard error, and ignores failures.
fn warn(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "wirespeed-bench: {text}");
}

/// Writes to standard output and flushes, and ignores failures.
fn show(text: &str) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Returns bytes as lower-case hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}
