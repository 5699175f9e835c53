//! `wirespeed-bench`: the native side of tests and benchmarks.

mod certificate;
mod descriptors;
mod echo;
mod load;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The native side of wirespeed's tests and benchmarks
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
    /// Writes server.pem, a certificate for 127.0.0.1 with its key, and authority.pem, who signed it
    Certificate {
        /// Where they are written
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

/// What is wrong with a command line, as one line: programs that start this one pass it on.
fn one_line(error: &str) -> String {
    let error = error.strip_prefix("error: ").unwrap_or(error);
    let lines: Vec<_> = error.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    format!("{}; try --help", lines.join(" "))
}

/// A number on the command line of which there must be one at least.
fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "a number of at least 1 is wanted".to_owned())
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

/// Bytes as lower-case hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // a String takes all
        text
    })
}
