//! The `walla` command.
//!
//! No write to standard output or standard error panics: `write!` with its error returned for the
//! former, `note!` for the latter.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod bench;
mod chat;
mod devices;
mod embed;
#[cfg(feature = "evaluate")]
mod evaluate;
mod fit;
mod generate;
mod hints;
mod input;
mod inspect;
mod load;
mod logits;
mod note;
mod output;
#[cfg(feature = "pull")]
mod pull;
mod replay;
mod score;
#[cfg(feature = "serve")]
mod serve;
mod tokenize;
mod usage;
#[cfg(feature = "voice")]
mod voice;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Arguments, Verb};
use note::note;

/// An error, as one line for the user.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    let result = match arguments.verb {
        Verb::Inspect(arguments) => inspect::run(&arguments),
        Verb::Tokenize(arguments) => tokenize::run(&arguments),
        Verb::Detokenize(arguments) => tokenize::run_back(&arguments),
        Verb::Embed(arguments) => embed::run(&arguments),
        Verb::Logits(arguments) => logits::run(&arguments),
        Verb::Generate(arguments) => generate::run(&arguments),
        Verb::Score(arguments) => score::run(&arguments),
        Verb::Chat(arguments) => chat::run(&arguments),
        Verb::Replay(arguments) => replay::run(&arguments),
        #[cfg(feature = "serve")]
        Verb::Serve(arguments) => serve::run(&arguments),
        #[cfg(feature = "pull")]
        Verb::Pull(arguments) => pull::run(&arguments),
        #[cfg(feature = "voice")]
        Verb::Speak(arguments) => voice::speak::run(&arguments),
        #[cfg(feature = "voice")]
        Verb::Transcribe(arguments) => voice::transcribe::run(&arguments),
        #[cfg(feature = "voice")]
        Verb::Talk(arguments) => voice::talk::run(&arguments),
        Verb::Bench(arguments) => bench::run(&arguments),
        #[cfg(feature = "evaluate")]
        Verb::Evaluate(arguments) => evaluate::run(&arguments),
        Verb::Fit(arguments) => fit::run(&arguments),
        Verb::Devices(arguments) => devices::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output has closed the pipe (`walla … | head`): not a failure.
        Err(failure) if is_broken_pipe(&*failure) => ExitCode::SUCCESS,
        Err(failure) => {
            note!("walla: {}", one_line(&failure.to_string()));
            ExitCode::FAILURE
        }
    }
}

/// Prints help and version as clap does, and an error in one line, like any other failure.
fn refuse(error: &clap::Error) -> ExitCode {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    let code = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
    if matches!(
        error.kind(),
        DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return match error.print() {
            // A closed pipe is not an error.
            Err(error) if !is_closed(&error) => {
                note!("walla: {}", one_line(&error.to_string()));
                ExitCode::FAILURE
            }
            _ => code,
        };
    }
    // The first paragraph is the error; tips and usage follow.
    let text = error.render().to_string();
    let what = text.split("\n\n").next().unwrap_or_default();
    let what = what.strip_prefix("error: ").unwrap_or(what);
    let arguments = std::env::args_os().skip(1);
    let arguments: Vec<_> = arguments.map(|a| a.to_string_lossy().into_owned()).collect();
    let hint = hints::hint(error, &arguments).map(|hint| format!(": {hint}")).unwrap_or_default();
    let verb = arguments.first().filter(|verb| Arguments::has_verb(verb));
    let help = verb.map_or("walla --help".to_owned(), |verb| format!("walla {verb} --help"));
    note!("walla: {}{hint} (see {help})", one_line(what));
    code
}

fn is_broken_pipe(failure: &(dyn std::error::Error + 'static)) -> bool {
    failure.downcast_ref().is_some_and(is_closed)
}

/// Whether nothing reads a pipe any more.
fn is_closed(error: &std::io::Error) -> bool {
    /// std knows the other two errors of Windows for it, `ERROR_BROKEN_PIPE` and `ERROR_NO_DATA`.
    const PIPE_NOT_CONNECTED: i32 = 233;
    error.kind() == std::io::ErrorKind::BrokenPipe
        || cfg!(windows) && error.raw_os_error() == Some(PIPE_NOT_CONNECTED)
}

/// Without control characters: a file of a stranger may have a part of the text.
fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}
