//! The lore of Emberfall and questions about it.

use std::sync::LazyLock;

use serde::Deserialize;
use walla_memory::{EntryId, Hit, Query, Store, Tags, search};

/// A question with the entries that answer it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Index of the entry that answers it.
    pub entry: u64,
    pub kind: Kind,
    pub question: String,
    /// Other entries that answer it too.
    #[serde(default)]
    pub also: Vec<u64>,
}

/// Direct questions have the words of their entries; paraphrases have at most one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Direct,
    Paraphrase,
}

impl Question {
    pub fn is_answered_by(&self, id: EntryId) -> bool {
        self.entry == id.get() || self.also.contains(&id.get())
    }
}

pub fn lore() -> Store {
    Store::from_lore_text(include_str!("../data/lore.txt")).unwrap()
}

pub fn questions() -> Vec<Question> {
    serde_json::from_str(include_str!("../data/questions.json")).unwrap()
}

/// Written after the model of `walla_minilm` was made.
pub fn later_questions() -> Vec<Question> {
    serde_json::from_str(include_str!("../data/questions_2.json")).unwrap()
}

/// A reader of everything: the questions are about secrets too.
static EVERYONE: LazyLock<Tags> =
    LazyLock::new(|| ["guards", "millers", "manor", "monastery", "thieves"].into_iter().collect());

/// Recall at 1, 5 and 10, in percent, of all, direct and paraphrased questions.
pub type Recall = [[f64; 3]; 3];

/// Searches for each question as `change` has it.
pub fn recall<'q>(
    store: &Store,
    questions: &'q [Question],
    change: impl Fn(usize, Query<'q>) -> Query<'q>,
) -> Recall {
    let ranks: Vec<(Kind, Option<usize>)> = (0..)
        .zip(questions)
        .map(|(at, of)| {
            let query = Query { reader: &EVERYONE, most: 10, ..Query::new(&of.question) };
            let hits: Vec<Hit<'_>> = search(&[store], &change(at, query)).unwrap();
            (of.kind, hits.iter().position(|hit| of.is_answered_by(hit.id)))
        })
        .collect();
    let share = |is_in: &dyn Fn(Kind) -> bool, places: usize| {
        let of: Vec<_> = ranks.iter().filter(|(kind, _)| is_in(*kind)).collect();
        let found = of.iter().filter(|(_, rank)| rank.is_some_and(|rank| rank < places)).count();
        100.0 * found as f64 / of.len() as f64
    };
    let kinds: [&dyn Fn(Kind) -> bool; 3] =
        [&|_| true, &|kind| kind == Kind::Direct, &|kind| kind == Kind::Paraphrase];
    kinds.map(|is_in| [1, 5, 10].map(|places| share(is_in, places)))
}

pub fn print(name: &str, recall: &Recall) {
    for (kind, [one, five, ten]) in ["all", "direct", "paraphrase"].iter().zip(recall) {
        println!("| {name} | {kind} | {one:.1} | {five:.1} | {ten:.1} |");
    }
}

#[test]
fn the_data_is_consistent() {
    let (store, questions) = (lore(), questions());
    assert_eq!(store.len(), 200);
    assert!(questions.len() >= 520, "{}", questions.len());
    let paraphrases = questions.iter().filter(|of| of.kind == Kind::Paraphrase).count();
    assert!(3 * paraphrases >= questions.len());
    for id in 0..200 {
        let answers = |of: &Question| of.is_answered_by(EntryId::new(id));
        assert!(questions.iter().any(answers), "entry {id} has a question");
    }
    for of in &questions {
        for id in of.also.iter().chain([&of.entry]) {
            assert!(store.get(EntryId::new(*id)).is_some(), "{of:?}");
        }
    }
    let mut texts: Vec<_> = questions.iter().map(|of| &of.question).collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), questions.len(), "no question is there twice");
}
