//! `walla score`: log-probabilities of texts behind a prompt.

use std::io::Write;

use serde_json::json;
use tokio::io::BufReader;
use walla::{AskOptions, Engine, FinishReason, Prompt, ReplyEvent};

use crate::Failure;
use crate::args::Score;
use crate::input;
use crate::load;
use crate::note::note;
use crate::usage::Report;

pub fn run(arguments: &Score) -> Result<(), Failure> {
    let Score { model, engine, context, .. } = arguments;
    load::block_on(async {
        let texts = texts(arguments).await?;
        let engine = load::engine(Some(model), engine, (1, *context), None, None).await?;
        load::until_done(&engine, write_scores(&engine, arguments, texts)).await
    })
}

/// The texts to score: of the arguments, or the lines of a file.
async fn texts(arguments: &Score) -> Result<Vec<String>, Failure> {
    let Some(path) = &arguments.lines else { return Ok(arguments.texts.clone()) };
    if path.as_os_str() != "-" {
        return Ok(input::text(path)?.lines().map(str::to_owned).collect());
    }
    let (mut input, mut texts) = (BufReader::new(tokio::io::stdin()), Vec::new());
    while let Some(line) = input::whole_line(&mut input).await? {
        texts.push(line);
    }
    Ok(texts)
}

async fn write_scores(
    engine: &Engine,
    arguments: &Score,
    texts: Vec<String>,
) -> Result<(), Failure> {
    let prompt = arguments.prompt.clone();
    let prompt = if arguments.special { Prompt::RawTrusted(prompt) } else { Prompt::Raw(prompt) };
    let agent = engine.agent("");
    let mut reply = agent.ask_with(prompt, AskOptions::score(texts.iter().cloned()));
    let mut out = std::io::stdout();
    let mut tokens = 0;
    while let Some(event) = reply.next_event().await {
        match event {
            ReplyEvent::Score(score) => {
                tokens += score.tokens;
                let text = &texts[score.index as usize];
                let (sum, mean) = (score.log_probability, score.per_token());
                if arguments.json {
                    // JSON has no infinity.
                    let sum = sum.is_finite().then_some(sum);
                    let line =
                        json!({"text": text, "tokens": score.tokens, "log_probability": sum});
                    writeln!(out, "{line}")?;
                } else {
                    writeln!(out, "{sum:10.4} {mean:9.4} {:5}  {text:?}", score.tokens)?;
                }
            }
            ReplyEvent::Failed(error) => return Err(error.into()),
            ReplyEvent::Finished { reason: FinishReason::Scored, usage } => {
                note!("columns: log-probability, its mean for each token, tokens, text");
                note!("{tokens} tokens in {} texts; {}", texts.len(), Report(usage));
            }
            ReplyEvent::Finished { reason, .. } => {
                return Err(format!("the scores ended early: {reason:?}").into());
            }
            _ => {}
        }
    }
    Ok(())
}
