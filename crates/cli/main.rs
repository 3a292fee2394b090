//! The command line: arguments to commands, errors to exit codes. Everything that Tidegate promises is in its libraries.
//!
//! Exit codes: 0 done; 1 the answer is no (something undelivered, a verdict that failed); 2 usage or configuration.

#![forbid(unsafe_code)]

mod args;
mod config;
mod demo;
mod embedded;
mod http;
mod progress;
mod queue;
mod send;
mod serve;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::args::{Args, Command, QueueCommand};

/// The answer is no.
const NO: u8 = 1;
/// Usage or configuration.
const USAGE: u8 = 2;

/// How a command ended, if it could do its work at all.
pub(crate) enum Verdict {
    Done,
    No,
}

fn main() -> ExitCode {
    let args = Args::parse();
    start_logging(&args.command);
    let result = match args.command {
        Command::Demo(args) => demo::run(&args),
        Command::DemoWorker(args) => demo::worker::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Send(args) => send::run(&args),
        Command::Queue(QueueCommand::Stat(args)) => queue::stat(&args),
    };
    match result {
        Ok(Verdict::Done) => ExitCode::SUCCESS,
        Ok(Verdict::No) => ExitCode::from(NO),
        Err(error) => {
            eprintln!("tidegate: {error:#}");
            ExitCode::from(USAGE)
        }
    }
}

/// Logs go to standard error; what a command answers goes to standard output. `TIDEGATE_LOG` chooses, as `RUST_LOG` does
/// elsewhere: `TIDEGATE_LOG=debug`, or `tidegate_delivery=debug,warn`.
fn start_logging(command: &Command) {
    let quiet = matches!(command, Command::Demo(_) | Command::DemoWorker(_) | Command::Queue(_));
    let default = if quiet { "error" } else { "info" };
    let asked = std::env::var("TIDEGATE_LOG").unwrap_or_else(|_| default.to_owned());
    let filter = EnvFilter::try_new(&asked).unwrap_or_else(|error| {
        eprintln!("tidegate: TIDEGATE_LOG={asked:?} is not understood ({error}); using {default}");
        EnvFilter::new(default)
    });
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).init();
}
