//! Memories of agents, and embeddings of the engine.

use std::time::Duration;

use walla::memory::{AgentRecall, Entry, Memory, RecallOptions};
use walla::{
    AskOptions, EmbedError, Embedder, EmbedderOptions, EngineOptions, FrameBudget, Notes, Purpose,
};
use walla_doubles::FaultPlan;

use crate::host::{engine, eventually, on, options, soon, speaker};

fn embedder() -> Embedder {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../walla_embed/tests/data/bert-mean-f32.gguf");
    Embedder::load(path, EmbedderOptions::default()).unwrap()
}

#[tokio::test]
async fn an_ask_carries_what_its_agent_knows() {
    let engine = engine().await;
    let mut memory = Memory::default();
    memory.add(Entry::new("The player owes 3 silver.")).unwrap();
    memory.add(Entry::new("The well is dry.")).unwrap();
    engine.recall().update(&mut memory).unwrap();
    let prompt_tokens = async |agent: &walla::Agent, question: &str| {
        let finished = soon("the end", agent.ask(question).finish()).await.unwrap();
        finished.usage.prompt_tokens
    };
    let question = "Is the well dry?";
    let plain = engine.agent_with(speaker(1, 3));
    let without = prompt_tokens(&plain, question).await;
    let greta = engine.agent_with(speaker(1, 3));
    greta.set_recall(Some(AgentRecall::new([memory.key()])));
    let with = prompt_tokens(&greta, question).await;
    assert!(with > without + 5, "{with} {without}");
    // The notes are no part of the conversation, and a fork knows the same.
    let copy = greta.fork().await.unwrap();
    greta.set_recall(None);
    let other = "Hello there.";
    let (of_plain, of_greta) =
        (prompt_tokens(&plain, other).await, prompt_tokens(&greta, other).await);
    assert_eq!(of_greta, of_plain);
    let of_copy = prompt_tokens(&copy, question).await;
    let again = prompt_tokens(&greta, question).await;
    assert!(of_copy < again, "the copy has one exchange less: {of_copy} {again}");
    assert_eq!(engine.recall().stats().searches, 2);
}

/// As in Bevy: the rule is the one of all settings of an ask.
#[tokio::test]
async fn notes_of_an_ask_replace_the_found_entries() {
    let engine = engine().await;
    let mut memory = Memory::default();
    memory.add(Entry::new("The well is dry.")).unwrap();
    engine.recall().update(&mut memory).unwrap();
    let prompt_tokens = async |has_memory: bool, notes: &[&str]| {
        let agent = engine.agent_with(speaker(1, 3));
        agent.set_recall(has_memory.then(|| AgentRecall::new([memory.key()])));
        let options = AskOptions::notes(Notes::new(notes.iter().copied()));
        let reply = agent.ask_with("Is the well dry?", options);
        soon("the end", reply.finish()).await.unwrap().usage.prompt_tokens
    };
    for notes in [&["It rains."][..], &[]] {
        assert_eq!(prompt_tokens(true, notes).await, prompt_tokens(false, notes).await);
    }
    assert_eq!(engine.recall().stats().searches, 0);
}

#[tokio::test]
async fn an_engine_embeds_with_the_model_that_is_set() {
    let engine = engine().await;
    let embed = engine.embed("a horse", Purpose::Plain).await;
    assert_eq!(embed.unwrap_err(), EmbedError::NoModel);
    let embedder = embedder();
    engine.recall().set_embedder(Some(embedder.clone()));
    let one = soon("a vector", engine.embed("a horse", Purpose::Plain)).await.unwrap();
    assert_eq!(one.vector.len(), embedder.dimensions());
    let texts = ["a horse", "the well"].map(str::to_owned).to_vec();
    let both = soon("vectors", engine.embed_all(texts, Purpose::Plain)).await.unwrap();
    assert_eq!((both.len(), &both[0]), (2, &one));
    // The engine's own memories use the same model.
    let mut memory = Memory::default();
    memory.add(Entry::new("the well is dry")).unwrap();
    engine.recall().update(&mut memory).unwrap();
    let greta = engine.agent_with(speaker(1, 3));
    greta.set_recall(Some(AgentRecall::new([memory.key()])));
    soon("the end", greta.ask("is it of the").finish()).await.unwrap();
    let stats = engine.recall().stats();
    assert_eq!((stats.searches, stats.vectors, stats.without_vector), (1, 1, 0));
}

/// No host grants frames to the embedding model here, and these settings give it a budget.
#[tokio::test]
async fn a_budget_without_frames_computes_vectors() {
    assert!(RecallOptions::default().embed_budget.is_some());
    let engine =
        on(FaultPlan::new(0), options()).0.recall(RecallOptions::default()).start().await.unwrap();
    engine.recall().set_embedder(Some(embedder()));
    // Also after the threads have nothing to do.
    for pause in [0, 100, 0, 100].map(Duration::from_millis) {
        tokio::time::sleep(pause).await;
        let vector = soon("a vector", engine.embed("the well is dry", Purpose::Plain)).await;
        assert!(!vector.unwrap().vector.is_empty());
    }
}

/// While the embedding model works, the budget is lower. Afterwards it is the host's again, however
/// often and whenever that was, and it is never zero, which is a pause.
#[tokio::test]
async fn the_budget_is_the_hosts_when_nothing_is_embedded() {
    for total in [8_000, 600].map(Duration::from_micros) {
        let part = Some(Duration::from_millis(1));
        let recall =
            RecallOptions { embed_budget: part, frame_time: part, ..RecallOptions::default() };
        let budget = FrameBudget::Time(total);
        let options = EngineOptions { budget, budget_free_running: true, ..options() };
        let engine = on(FaultPlan::new(0), options).0.recall(recall).start().await.unwrap();
        engine.recall().set_embedder(Some(embedder()));
        let mut memory = Memory::default();
        memory.add(Entry::new("the well is dry")).unwrap();
        engine.recall().update(&mut memory).unwrap();
        let greta = engine.agent_with(speaker(1, 1));
        greta.set_recall(Some(AgentRecall::new([memory.key()])));
        let ask = async || {
            greta.set_conversation(Vec::new());
            soon("the end", greta.ask("is it of the").finish()).await.unwrap();
        };
        for _ in 0..30 {
            ask().await;
        }
        let in_effect = || engine.runtime().expect("a local engine").stats().budget.budget;
        let is = |wanted: Duration| in_effect() == Some(wanted);
        eventually("the budget of the options", || is(total)).await;
        // Another one is set while the model works.
        let texts = (0..200).map(|nth| format!("text {nth} of the well")).collect();
        let other = engine.clone();
        let embeds = tokio::spawn(async move { other.embed_all(texts, Purpose::Plain).await });
        ask().await;
        engine.set_budget(total / 2);
        ask().await;
        assert_eq!(soon("all vectors", embeds).await.unwrap().unwrap().len(), 200);
        ask().await;
        eventually("the new budget", || is(total / 2)).await;
    }
}
