//! Saved caches through the async API.

use std::time::Duration;

use walla::{
    AgentSpec, CacheError, Engine, EngineBuilder, EngineOptions, FrameBudget, KvFileError, Speaker,
    Turn,
};
use walla_doubles::FaultPlan;

// Shared with a package outside the workspace.
#[path = "../../../../fuzz/src/bodies/cache_file.rs"]
mod body;

use crate::host::{on, options, soon, speaker};

/// Several pages.
fn spec() -> AgentSpec {
    AgentSpec { persona: "the inn stands by the ford ".repeat(4), ..speaker(3, 12) }
}

fn builder() -> EngineBuilder {
    let mut options = options();
    // Copies take part in the budget.
    options.budget = FrameBudget::Time(Duration::from_millis(2));
    on(FaultPlan::new(0), options).0
}

async fn said(engine: &Engine, agent: &walla::Agent) -> walla::Finished {
    assert!(engine.stats().agents > 0);
    soon("the end", agent.ask("And now?").finish()).await.unwrap()
}

#[tokio::test]
async fn an_agent_of_another_engine_goes_on_from_a_file_or_from_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("greta.kv");
    let first = builder().start().await.unwrap();
    let agent = first.agent_with(spec());
    let reply = soon("the end", agent.ask("Who are you?").finish()).await.unwrap();
    let saved = soon("the save", agent.save_cache(&path)).await.unwrap();
    let job = agent.save_cache_bytes();
    let bytes = loop {
        if let Some(bytes) = job.take_bytes() {
            break bytes;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    assert_eq!(bytes, std::fs::read(&path).unwrap());
    assert_eq!(saved.file_bytes, bytes.len() as u64);
    let expected = said(&first, &agent).await;
    let turns =
        vec![Turn::new(Speaker::User, "Who are you?"), Turn::new(Speaker::Agent, reply.text)];
    let second = builder().start().await.unwrap();
    for from_file in [true, false] {
        let agent = second.agent_with(AgentSpec { turns: turns.clone(), ..spec() });
        let job = match from_file {
            true => agent.load_cache(&path),
            false => agent.load_cache_bytes(bytes.clone()),
        };
        let loaded = soon("the load", job).await.unwrap();
        assert_eq!(loaded.tokens, saved.tokens);
        let reply = said(&second, &agent).await;
        assert_eq!(reply.text, expected.text);
        let evaluated = |usage: &walla::Usage| usage.prompt_tokens - usage.cached_tokens;
        assert!(evaluated(&reply.usage) <= evaluated(&expected.usage), "{:?}", reply.usage);
    }
}

/// The part of the fuzz target that CI runs.
#[test]
fn mutated_files_are_loads_or_errors_and_change_no_other_agent() {
    let seed = body::seed();
    body::cache_file(&seed);
    let mut state = 1_u64;
    let mut random = move |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for round in 0..400 {
        let mut bytes = seed.clone();
        bytes[0] = (round % 4 != 0).into();
        for _ in 0..1 + random(4) {
            let at = 1 + random(bytes.len() - 1);
            match random(8) {
                0 => bytes.truncate(at.max(2)),
                1 => bytes.insert(at, random(256) as u8),
                // Most numbers of the header are small.
                2 => bytes[1 + random(100)] = random(5) as u8,
                _ => bytes[at] = random(256) as u8,
            }
            if bytes.len() < 110 {
                break;
            }
        }
        body::cache_file(&bytes);
    }
}

#[tokio::test]
async fn a_job_ends_whatever_happens() {
    let options = EngineOptions { background_prefill: false, ..options() };
    let engine = on(FaultPlan::new(0), options).0.start().await.unwrap();
    let agent = engine.agent_with(spec());
    assert_eq!(soon("the save", agent.save_cache("unused.kv")).await, Err(CacheError::NotCached));
    let missing = soon("the load", agent.load_cache("is/not/there.kv")).await;
    assert!(matches!(missing, Err(CacheError::File(KvFileError::Io { .. }))), "{missing:?}");
    // The load of an agent with asks, and jobs of an agent and an engine that end.
    let reply = agent.ask("Hello");
    // The engine may see the ask or the missing file first.
    let refused = soon("the load", agent.load_cache("unused.kv")).await;
    let is_refused =
        matches!(refused, Err(CacheError::Asked | CacheError::File(KvFileError::Io { .. })));
    assert!(is_refused, "{refused:?}");
    drop(reply);
    let jobs: Vec<_> = (0..300).map(|_| agent.save_cache("is/not/there.kv")).collect();
    drop(agent);
    drop(engine);
    for job in jobs {
        let error = soon("the end of a job", job).await.expect_err("nothing is there");
        assert!(
            matches!(
                error,
                CacheError::EngineGone
                    | CacheError::UnknownAgent
                    | CacheError::NotCached
                    | CacheError::Busy
                    | CacheError::File(_)
            ),
            "{error}"
        );
    }
}
