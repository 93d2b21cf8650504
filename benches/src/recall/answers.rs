//! Questions that only a memory answers.

use std::error::Error;

use serde_json::{Value, json};
use walla::EngineOptions;
use walla::memory::{AgentRecall, Memory};
use walla::{AgentSpec, Engine, Sampling};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Replies that run at the same time.
    #[arg(long, default_value_t = 16)]
    agents: u32,
    /// Print each question with both answers.
    #[arg(long)]
    show: bool,
}

/// A fact of the lore, its question, and the word that a right answer has.
struct Fact {
    text: String,
    question: String,
    word: String,
}

const PERSONAS: [&str; 4] = [
    "You are Greta, the smith of Emberfall.",
    "You are Odo, the innkeeper of the Blue Lantern in Ferrow.",
    "You are Ada, a fisher from the river port of Sill.",
    "You are Bram, the miller of Oakham.",
];

/// Facts in the words of the model's corpus, each with its own subject.
fn facts() -> Vec<Fact> {
    const BUILDINGS: [&str; 12] = [
        "the old mill",
        "the chapel",
        "the watchtower",
        "the barn",
        "the lighthouse",
        "the granary",
        "the library",
        "the stable",
        "the bakery",
        "the ruined tower",
        "the town hall",
        "the brewery",
    ];
    const BEASTS: [&str; 12] = [
        "geese", "wolves", "bandits", "spiders", "bees", "ghosts", "rats", "boars", "crows",
        "bats", "goblins", "snakes",
    ];
    const WARES: [(&str, u32); 12] = [
        ("lantern", 7),
        ("rope", 4),
        ("kettle", 9),
        ("blanket", 5),
        ("shovel", 6),
        ("saddle", 18),
        ("barrel", 3),
        ("cloak", 14),
        ("ladder", 8),
        ("mirror", 16),
        ("drum", 11),
        ("basket", 2),
    ];
    const THINGS: [(&str, &str, &str); 12] = [
        ("nine", "barrels", "the cellar"),
        ("four", "swords", "the armoury"),
        ("seven", "horses", "the yard"),
        ("twelve", "candles", "the crypt"),
        ("five", "chests", "the vault"),
        ("eight", "boats", "the harbour"),
        ("three", "bells", "the tower"),
        ("six", "sheep", "the pen"),
        ("ten", "books", "the study"),
        ("two", "wagons", "the shed"),
        ("eleven", "sacks", "the loft"),
        ("thirteen", "graves", "the churchyard"),
    ];
    let capital = |text: &str| {
        let mut letters = text.chars();
        letters.next().map(|first| first.to_uppercase().chain(letters).collect::<String>())
    };
    let mut facts = Vec::new();
    for (building, beasts) in BUILDINGS.iter().zip(BEASTS) {
        let subject = capital(building).unwrap_or_default();
        facts.push(Fact {
            text: format!("{subject} is guarded by {beasts}."),
            question: format!("Who guards {building}?"),
            word: beasts.into(),
        });
    }
    for (ware, price) in WARES {
        facts.push(Fact {
            text: format!("A {ware} costs {price} silver."),
            question: format!("What does a {ware} cost?"),
            word: format!("{price} silver"),
        });
    }
    for (number, things, place) in THINGS {
        facts.push(Fact {
            text: format!("There are {number} {things} in {place}."),
            question: format!("How many {things} are in {place}?"),
            word: number.into(),
        });
    }
    facts
}

/// Right answers of one run.
struct Answered {
    right: usize,
    texts: Vec<String>,
}

pub fn run(args: &Args) -> Result<Value, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run_all(args))
}

async fn run_all(args: &Args) -> Result<Value, Box<dyn Error>> {
    let engine =
        Engine::start(EngineOptions { max_agents: Some(args.agents), ..EngineOptions::demo() })
            .await?;
    let facts = facts();
    let lore: String = facts.iter().map(|fact| format!("{}\n\n", fact.text)).collect();
    let mut lore = Memory::from_lore_text(&lore)?;
    engine.recall().update(&mut lore)?;
    let recall = AgentRecall { max_entries: 3, ..AgentRecall::new([lore.key()]) };
    let with = ask_all(&engine, &facts, Some(&recall)).await?;
    let without = ask_all(&engine, &facts, None).await?;
    let questions = with.texts.len();
    if args.show {
        for (nth, (with, without)) in with.texts.iter().zip(&without.texts).enumerate() {
            let fact = &facts[nth % facts.len()];
            println!("{} [{}]\n  with:    {with}\n  without: {without}", fact.question, fact.word);
        }
    }
    println!("| | right answers of {questions} |\n|---|---|");
    println!("| with memories | {} |\n| without | {} |", with.right, without.right);
    engine.stop().await;
    Ok(json!({
        "facts": facts.len(), "questions": questions,
        "right_with": with.right, "right_without": without.right,
    }))
}

async fn ask_all(
    engine: &Engine,
    facts: &[Fact],
    recall: Option<&AgentRecall>,
) -> Result<Answered, Box<dyn Error>> {
    let mut answered = Answered { right: 0, texts: Vec::new() };
    let questions: Vec<(&str, &Fact)> = PERSONAS
        .iter()
        .flat_map(|persona| facts.iter().map(move |fact| (*persona, fact)))
        .collect();
    for group in questions.chunks(64) {
        let mut replies = Vec::new();
        for (persona, fact) in group {
            let sampling = Sampling::greedy();
            let agent = engine.agent_with(AgentSpec { sampling, ..AgentSpec::new(*persona) });
            agent.set_recall(recall.cloned());
            let reply = agent.ask(fact.question.as_str());
            replies.push((agent, reply, fact));
        }
        for (agent, reply, fact) in replies {
            let text = reply.finish().await?.text;
            drop(agent);
            answered.right += usize::from(text.to_lowercase().contains(&fact.word));
            answered.texts.push(text);
        }
    }
    Ok(answered)
}
