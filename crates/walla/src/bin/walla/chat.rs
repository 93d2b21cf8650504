//! `walla chat`: talk to an agent. Ctrl-C during a reply cancels only the reply. Ctrl-D, or Ctrl-C
//! without a reply, ends the program.
//!
//! Standard output contains only speech; reasoning and times are written to standard error.

use std::io::{IsTerminal, Write};
use std::path::Path;

use tokio::io::{BufReader, Stdin};
use walla::{
    Agent, AgentSpec, Engine, FinishReason, ReplyError, ReplyEvent, TemplateChoice, Usage,
};
use walla_model::chat::ChatTemplate;
use walla_model::{ModelSpec, SpecError};

use crate::Failure;
use crate::args::{CUT, Chat, Switch, Visibility};
use crate::input::{self, Line};
use crate::load;
use crate::note::note;
use crate::usage::Report;

pub fn run(arguments: &Chat) -> Result<(), Failure> {
    load::block_on(chat(arguments))
}

async fn chat(arguments: &Chat) -> Result<(), Failure> {
    let Chat { engine, context, record, .. } = arguments;
    let model = arguments.model.as_deref();
    let template = arguments.template.template.as_ref();
    // Checked before the weights are loaded, which can take long.
    if let Some(model) = model {
        check_template(model, template)?;
    }
    let engine = load::engine(model, engine, (1, *context), template, record.as_deref()).await?;
    let result = load::until_done(&engine, talk(&engine, arguments)).await;
    if let Some(error) = engine.recorder().and_then(|recorder| recorder.error()) {
        note!("walla: the recording has ended early: {error}");
    }
    result
}

/// Refuses a model without a working chat template, and lists the remedies.
pub fn check_template(model: &Path, choice: Option<&TemplateChoice>) -> Result<(), Failure> {
    let file = load::open_quietly(model)?;
    // An embedding model has no template either, but choosing one is no remedy.
    if let Err(error @ SpecError::Encoder { .. }) = ModelSpec::from_gguf(&file, 1) {
        return Err(load::named(model, &error));
    }
    match ChatTemplate::resolve(&file, choice) {
        Ok((Some(_), _)) => Ok(()),
        Ok((None, state)) => Err(format!("{}: {state}; {WAYS_OUT}", model.display()).into()),
        Err(reason) => {
            let choice = choice.map(ToString::to_string).unwrap_or_default();
            Err(format!("--template {choice}: {reason}").into())
        }
    }
}

/// Remedies for a model without a working chat template.
pub const WAYS_OUT: &str = "choose a template with --template chatml, llama3, gemma, mistral or a \
Jinja file, or continue raw text with `walla generate`";

async fn talk(engine: &Engine, arguments: &Chat) -> Result<(), Failure> {
    let spec = AgentSpec {
        sampling: arguments.sampling.sampling()?,
        max_reply_tokens: arguments.tokens,
        thinking: arguments.thinking == Some(Switch::On),
        max_reasoning_tokens: arguments.reasoning_tokens,
        constraint: arguments.constraint.constraint()?,
        ..AgentSpec::new(arguments.persona.clone())
    };
    let has_switch = engine.model().is_some_and(|model| model.thinking_switch);
    if arguments.thinking.is_some() && !has_switch {
        note!("--thinking has no effect: the model's chat template has no switch for reasoning");
    }
    let is_constrained = spec.constraint.is_some();
    let agent = engine.agent_with(spec);
    let mut lines = BufReader::new(tokio::io::stdin());
    while let Some(line) = prompt(&mut lines).await? {
        match line {
            Line::Text(line) if line.trim().is_empty() => {}
            Line::Text(line) => {
                let end = answer(&agent, line, Reasoning::new(arguments.reasoning)).await?;
                if is_constrained
                    && end.is_some_and(|(reason, _)| reason != FinishReason::EndOfTurn)
                {
                    note!("{CUT}");
                }
                if let Some((_, usage)) = end.filter(|_| arguments.times) {
                    note!("{}", Report(usage));
                }
            }
            // The conversation continues.
            Line::TooLong => {
                let max_bytes = input::MAX_BYTES;
                note!("walla: a line of more than {max_bytes} bytes was skipped");
            }
        }
    }
    Ok(())
}

/// The next line; `None` at the end of input or at Ctrl-C.
async fn prompt(lines: &mut BufReader<Stdin>) -> Result<Option<Line>, Failure> {
    let mut out = std::io::stdout();
    write!(out, "> ")?;
    out.flush()?;
    tokio::select! {
        line = input::line(lines, input::MAX_BYTES) => Ok(line?),
        _ = tokio::signal::ctrl_c() => {
            writeln!(out)?;
            Ok(None)
        }
    }
}

/// Writes the reply to a line. Returns how it ended, unless it failed.
async fn answer(
    agent: &Agent,
    line: String,
    mut reasoning: Reasoning,
) -> Result<Option<(FinishReason, Usage)>, Failure> {
    let mut out = std::io::stdout();
    let mut reply = agent.ask(line);
    loop {
        tokio::select! {
            event = reply.next_event() => match event {
                None => break,
                Some(ReplyEvent::Delta { text, .. }) => {
                    reasoning.end();
                    write!(out, "{}", text.as_str())?;
                    out.flush()?;
                }
                Some(ReplyEvent::Reasoning { text, .. }) => reasoning.write(&text),
                // All replies would fail.
                Some(ReplyEvent::Failed(error @ ReplyError::Constraint(_))) => {
                    return Err(error.to_string().into());
                }
                // One reply failed; the conversation continues.
                Some(ReplyEvent::Failed(error)) => {
                    reasoning.end();
                    write!(out, "[{error}]")?;
                }
                Some(_) => {}
            },
            _ = tokio::signal::ctrl_c() => reply.cancel(),
        }
    }
    reasoning.end();
    writeln!(out)?;
    Ok(reply.end())
}

/// Writes reasoning to standard error, dimmed on a terminal, on separate lines. Errors of these
/// writes are ignored: the speech continues.
struct Reasoning {
    is_shown: bool,
    is_terminal: bool,
    is_open: bool,
}

impl Reasoning {
    fn new(visibility: Visibility) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let is_shown = match visibility {
            Visibility::Auto => is_terminal,
            Visibility::Show => true,
            Visibility::Hide => false,
        };
        Self { is_shown, is_terminal, is_open: false }
    }

    fn write(&mut self, text: &str) {
        if !self.is_shown {
            return;
        }
        let mut err = std::io::stderr();
        if !std::mem::replace(&mut self.is_open, true) && self.is_terminal {
            let _ignored = write!(err, "\x1b[2m");
        }
        let _ignored = write!(err, "{text}");
    }

    /// Ends the reasoning before speech or the end of the reply.
    fn end(&mut self) {
        if std::mem::take(&mut self.is_open) {
            note!("{}", if self.is_terminal { "\x1b[0m" } else { "" });
        }
    }
}
