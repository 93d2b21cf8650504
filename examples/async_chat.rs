//! Two characters answer at once, in a tokio program: each reply is a stream, and dropping one
//! cancels it.
//!
//! ```text
//! cargo run --release -p walla_examples --example async_chat [-- --model FILE.gguf "Have you heard any news?"]
//! ```

use std::io::Write;
use std::time::{Duration, Instant};

use clap::Parser;
use walla::{Agent, Engine, ReplyError, SentenceSplitter};
use walla_examples::{ModelArgs, REGULARS, fail};

/// Two characters answer the same question at the same time.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// The question.
    #[arg(default_value = "Have you heard any news?")]
    question: String,
    /// Maximum duration of a reply, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    patience: f64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments = Arguments::parse();
    if let Err(error) = talk(&arguments).await {
        fail(error);
    }
}

async fn talk(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::start(arguments.model.options(2)?).await?;
    let patience = Duration::from_secs_f64(arguments.patience.clamp(0.1, 3_600.0));
    println!("You: {}", arguments.question);
    let [smith, keeper, ..] = REGULARS;
    let (greta, odo) = (engine.agent(smith.text), engine.agent(keeper.text));
    let (first, second) = tokio::join!(
        answer(smith.name, &greta, &arguments.question, patience),
        answer(keeper.name, &odo, &arguments.question, patience),
    );
    first.and(second)?;
    engine.stop().await; // closes the device before the program ends
    Ok(())
}

/// Prints an agent's answer, a sentence at a time.
async fn answer(
    name: &str,
    agent: &Agent,
    question: &str,
    patience: Duration,
) -> Result<(), ReplyError> {
    let say = |sentence: &str| println!("{name}: {sentence}");
    let mut sentences = SentenceSplitter::new();
    let asked = Instant::now();
    let mut reply = agent.ask(question);
    while let Ok(next) = tokio::time::timeout_at((asked + patience).into(), reply.next()).await {
        let Some(delta) = next else {
            sentences.finish(say);
            if let Some((reason, usage)) = reply.end() {
                println!("   ({name}: {reason:?} after {} tokens)", usage.reply_tokens);
            }
            return Ok(());
        };
        sentences.push(delta?.text(), say);
    }
    // Dropping `reply` cancels it: the engine stops it at its next step, and this function does not
    // wait for that.
    sentences.finish(|rest| println!("{name}: {rest} …"));
    let _ = std::io::stdout().flush();
    Ok(())
}
