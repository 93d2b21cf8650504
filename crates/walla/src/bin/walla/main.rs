//! The `walla` command.

mod args;
mod bench;
mod chat;
mod devices;
mod generate;
mod inspect;
mod load;
mod logits;
mod synth;
mod tokenize;

use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Verb};

/// What went wrong, in one line for a person.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let result = match Arguments::parse().verb {
        Verb::Inspect(arguments) => inspect::run(&arguments),
        Verb::Tokenize(arguments) => tokenize::run(&arguments),
        Verb::Detokenize(arguments) => tokenize::run_back(&arguments),
        Verb::Logits(arguments) => logits::run(&arguments),
        Verb::Generate(arguments) => generate::run(&arguments),
        Verb::Chat(arguments) => chat::run(&arguments),
        Verb::Bench(arguments) => bench::run(&arguments),
        Verb::Devices(arguments) => devices::run(&arguments),
        Verb::Synth(arguments) => synth::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads our output has read enough (`walla … | head`): that is no failure of ours.
        Err(failure) if is_broken_pipe(&*failure) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("walla: {}", one_line(&failure.to_string()));
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(failure: &(dyn std::error::Error + 'static)) -> bool {
    let io = failure.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
