//! Questions that only a memory answers, in the words of the memory and in others.

use std::time::Duration;

use walla::memory::{AgentRecall, Memory};
use walla::{Embedder, EmbedderOptions, Sampling};

use super::report::Fault;
use super::*;

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

const PERSONA: &str = "You are Greta, the smith of Emberfall. You answer in one short sentence.";

/// Maximum tokens of an answer.
const MAX_TOKENS: u32 = 40;

/// Entries of memory in a prompt.
const MAX_ENTRIES: usize = 3;

pub async fn measure(engine: &Engine) -> Result<Vec<Section>, Failure> {
    let facts = facts();
    let lore: String = facts.iter().map(|fact| format!("{}\n\n", fact.text)).collect();
    let mut lore = Memory::from_lore_text(&lore)?;
    let recall = AgentRecall { max_entries: MAX_ENTRIES, ..AgentRecall::new([lore.key()]) };
    let mut sections = Vec::new();
    // Found by words first, and the embedding model then computes the vectors of all entries.
    engine.recall().set_embedder(None);
    engine.recall().update(&mut lore)?;
    let own: Question = |fact| &fact.question;
    let other: Question = |fact| &fact.paraphrase;
    for (name, question) in
        [("memory, its words, found by words", own), ("memory, other words, found by words", other)]
    {
        sections.push(ask_facts(engine, name, &facts, question, &recall).await?);
    }
    engine.recall().set_embedder(Some(Embedder::minilm(EmbedderOptions::default())?));
    while engine.recall().stats().vectors < facts.len() as u64 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for (name, question) in [
        ("memory, its words, found by meaning", own),
        ("memory, other words, found by meaning", other),
    ] {
        sections.push(ask_facts(engine, name, &facts, question, &recall).await?);
    }
    Ok(sections)
}

async fn ask_facts(
    engine: &Engine,
    name: &'static str,
    facts: &[Fact],
    question: Question,
    recall: &AgentRecall,
) -> Result<Section, Failure> {
    let sampling = Sampling::greedy();
    let spec = AgentSpec { sampling, max_reply_tokens: MAX_TOKENS, ..AgentSpec::new(PERSONA) };
    let asks = facts.iter().map(|fact| (question(fact).to_owned(), AskOptions::default()));
    let heard = ask_all(engine, name, &spec, Some(recall), asks.collect()).await?;
    let mut section = Section::new(name);
    for (fact, heard) in facts.iter().zip(heard) {
        section.take(has_word(&heard.text, &fact.word), || Fault {
            ask: question(fact).to_owned(),
            expected: fact.word.clone(),
            got: heard.text,
        });
    }
    Ok(section)
}

/// Whether an answer has a word, as a whole word, in any case.
fn has_word(answer: &str, word: &str) -> bool {
    walla_runtime::find_word(answer, word).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_has_its_own_word_and_its_paraphrase_does_not_name_it() {
        let facts = facts();
        assert_eq!(facts.len(), 36);
        for fact in &facts {
            let Fact { text, question, paraphrase, word } = fact;
            assert!(has_word(text, word), "{text}");
            assert!(!has_word(question, word) && !has_word(paraphrase, word), "{question}");
        }
    }

    #[test]
    fn an_answer_is_right_with_the_whole_word() {
        assert!(has_word("Bees do.", "bees"));
        assert!(has_word("It costs 7 silver!", "7 silver"));
        assert!(!has_word("It costs 17 silver.", "7 silver"));
        assert!(!has_word("There are sixteen.", "six"));
        assert!(!has_word("", "six"));
    }
}
