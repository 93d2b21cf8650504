//! Questions that only a memory answers, in the words of the memory and in others.

use std::error::Error;
use std::path::PathBuf;

use serde_json::{Value, json};
use walla::memory::{AgentRecall, Memory};
use walla::{AgentSpec, Embedder, EmbedderOptions, Engine, EngineOptions, Sampling};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Replies that run at the same time.
    #[arg(long, default_value_t = 16)]
    agents: u32,
    /// Characters that are asked, of 4.
    #[arg(long, default_value_t = 4)]
    characters: usize,
    /// A model instead of the demo model.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Print each question with its answers.
    #[arg(long)]
    show: bool,
}

/// A fact of the lore, questions for it, and the word that a right answer has.
struct Fact {
    text: String,
    question: String,
    /// Without a word of the text, except for function words.
    paraphrase: String,
    word: String,
}

/// Selects a question of a fact.
type Question = fn(&Fact) -> &str;

const PERSONAS: [&str; 4] = [
    "You are Greta, the smith of Emberfall.",
    "You are Odo, the innkeeper of the Blue Lantern in Ferrow.",
    "You are Ada, a fisher from the river port of Sill.",
    "You are Bram, the miller of Oakham.",
];

/// Facts in the words of the model's corpus, each with its own subject.
fn facts() -> Vec<Fact> {
    const BUILDINGS: [(&str, &str); 12] = [
        ("the old mill", "the place where corn was ground"),
        ("the chapel", "the little house of prayer"),
        ("the watchtower", "the high lookout post"),
        ("the barn", "the hay store of the farm"),
        ("the lighthouse", "the beacon for ships"),
        ("the granary", "the grain store"),
        ("the library", "the room of scrolls"),
        ("the stable", "the building where riders leave their mounts"),
        ("the bakery", "the shop where bread is made"),
        ("the ruined tower", "the crumbling keep"),
        ("the town hall", "the mayor's offices"),
        ("the brewery", "the place where beer is made"),
    ];
    const BEASTS: [&str; 12] = [
        "geese", "wolves", "bandits", "spiders", "bees", "ghosts", "rats", "boars", "crows",
        "bats", "goblins", "snakes",
    ];
    const WARES: [(&str, u32, &str); 12] = [
        ("lantern", 7, "a lamp to carry"),
        ("rope", 4, "a strong cord"),
        ("kettle", 9, "a pot to boil water"),
        ("blanket", 5, "a warm cover for my bed"),
        ("shovel", 6, "a tool to dig"),
        ("saddle", 18, "a seat for my horse"),
        ("barrel", 3, "a wooden cask"),
        ("cloak", 14, "a warm coat to travel in"),
        ("ladder", 8, "something to climb on the roof"),
        ("mirror", 16, "a glass to see my face"),
        ("drum", 11, "an instrument to beat"),
        ("basket", 2, "something woven to carry apples"),
    ];
    const THINGS: [(&str, &str, &str, &str); 12] = [
        ("nine", "barrels", "the cellar", "casks are in the wine store below the house"),
        ("four", "swords", "the armoury", "blades are in the weapon room"),
        ("seven", "horses", "the yard", "mounts are in the court"),
        ("twelve", "candles", "the crypt", "lights of wax are in the burial chamber"),
        ("five", "chests", "the vault", "coffers are in the strongroom"),
        ("eight", "boats", "the harbour", "vessels are in the port"),
        ("three", "bells", "the tower", "chimes are in the steeple"),
        ("six", "sheep", "the pen", "ewes are in the fold"),
        ("ten", "books", "the study", "volumes are in the scholar's room"),
        ("two", "wagons", "the shed", "carts are in the outhouse"),
        ("eleven", "sacks", "the loft", "bags are in the attic"),
        ("thirteen", "graves", "the churchyard", "tombs are in the cemetery"),
    ];
    let capital = |text: &str| {
        let mut letters = text.chars();
        letters.next().map(|first| first.to_uppercase().chain(letters).collect::<String>())
    };
    let mut facts = Vec::new();
    for ((building, other), beasts) in BUILDINGS.iter().zip(BEASTS) {
        let subject = capital(building).unwrap_or_default();
        facts.push(Fact {
            text: format!("{subject} is guarded by {beasts}."),
            question: format!("Who guards {building}?"),
            paraphrase: format!("What keeps people away from {other}?"),
            word: beasts.into(),
        });
    }
    for (ware, price, other) in WARES {
        facts.push(Fact {
            text: format!("A {ware} costs {price} silver."),
            question: format!("What does a {ware} cost?"),
            paraphrase: format!("How much money do you want for {other}?"),
            word: format!("{price} silver"),
        });
    }
    for (number, things, place, others) in THINGS {
        facts.push(Fact {
            text: format!("There are {number} {things} in {place}."),
            question: format!("How many {things} are in {place}?"),
            paraphrase: format!("How many {others}?"),
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
    let options = args.model.as_ref().map_or_else(EngineOptions::demo, EngineOptions::model);
    let engine = Engine::start(EngineOptions { max_agents: Some(args.agents), ..options }).await?;
    let facts = facts();
    let lore: String = facts.iter().map(|fact| format!("{}\n\n", fact.text)).collect();
    let mut lore = Memory::from_lore_text(&lore)?;
    let recall = AgentRecall { max_entries: 3, ..AgentRecall::new([lore.key()]) };
    let questions: [(&str, Question); 2] = [
        ("in the words of the memory", |fact| &fact.question),
        ("in other words", |fact| &fact.paraphrase),
    ];
    let mut runs = Vec::new();
    // Found by words first, and the model then computes the vectors of all entries.
    engine.recall().set_embedder(None);
    engine.recall().update(&mut lore)?;
    for (name, question) in questions {
        for (memory, recall) in [("none", None), ("found by words", Some(&recall))] {
            runs.push((
                name,
                memory,
                question,
                ask_all(&engine, args, &facts, question, recall).await?,
            ));
        }
    }
    engine.recall().set_embedder(Some(Embedder::minilm(EmbedderOptions::default())?));
    while engine.recall().stats().vectors < facts.len() as u64 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    for (name, question) in questions {
        let answered = ask_all(&engine, args, &facts, question, Some(&recall)).await?;
        runs.push((name, "found by meaning", question, answered));
    }
    let asked = PERSONAS.len().min(args.characters) * facts.len();
    println!("| questions | memories | right answers of {asked} |\n|---|---|---|");
    for (name, memory, _, answered) in &runs {
        println!("| {name} | {memory} | {} |", answered.right);
    }
    for (name, memory, question, answered) in runs.iter().filter(|_| args.show) {
        println!("\n{name}, {memory}");
        for (nth, text) in answered.texts.iter().enumerate() {
            let fact = &facts[nth % facts.len()];
            println!("{} [{}]\n  {text}", question(fact), fact.word);
        }
    }
    engine.stop().await;
    let report = |(questions, memories, _, answered): &(&str, &str, _, Answered)| json!({"questions": questions, "memories": memories, "right": answered.right});
    let runs: Vec<Value> = runs.iter().map(report).collect();
    Ok(json!({"model": args.model, "facts": facts.len(), "asked": asked, "runs": runs}))
}

async fn ask_all(
    engine: &Engine,
    args: &Args,
    facts: &[Fact],
    question: Question,
    recall: Option<&AgentRecall>,
) -> Result<Answered, Box<dyn Error>> {
    let mut answered = Answered { right: 0, texts: Vec::new() };
    let questions: Vec<(&str, &Fact)> = PERSONAS
        .iter()
        .take(args.characters)
        .flat_map(|persona| facts.iter().map(move |fact| (*persona, fact)))
        .collect();
    for group in questions.chunks(64) {
        let mut replies = Vec::new();
        for (persona, fact) in group {
            let sampling = Sampling::greedy();
            let agent = engine.agent_with(AgentSpec { sampling, ..AgentSpec::new(*persona) });
            agent.set_recall(recall.cloned());
            let reply = agent.ask(question(fact));
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
