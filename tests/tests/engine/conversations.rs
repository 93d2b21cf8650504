//! Forks, repeated replies and rewinds of long conversations on the demo model: the
//! tokens that are evaluated.

use walla::{
    AgentSpec, AskOptions, Engine, EngineOptions, Finished, Reply, Sampling, Speaker, Turn,
};

const GRETA: &str = "You are Greta, the smith of Emberfall. A horseshoe costs 3 silver.";

async fn demo() -> Engine {
    let options = EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(8),
        context_tokens: 2_048,
        ..EngineOptions::demo()
    };
    Engine::start(options).await.unwrap()
}

/// A conversation of about 800 tokens.
fn long() -> AgentSpec {
    let lines = [
        "What does a horseshoe cost?",
        "3 silver for a horseshoe.",
        "Who are you?",
        "Greta. Everybody knows me.",
    ];
    let turns = lines.iter().cycle().take(2 * 28).enumerate().map(|(at, text)| {
        let speaker = if at % 2 == 0 { Speaker::User } else { Speaker::Agent };
        Turn::new(speaker, (*text).to_owned())
    });
    let sampling = Sampling::builder().temperature(0.8).seed(1).build().unwrap();
    AgentSpec { sampling, max_reply_tokens: 24, turns: turns.collect(), ..AgentSpec::new(GRETA) }
}

async fn end(reply: Reply) -> Finished {
    reply.finish().await.unwrap()
}

fn evaluated(finished: &Finished) -> u32 {
    finished.usage.prompt_tokens - finished.usage.cached_tokens
}

#[tokio::test]
async fn a_fork_of_a_long_conversation_evaluates_only_its_question() {
    let engine = demo().await;
    let agent = engine.agent_with(long());
    let whole = end(agent.ask("Hello.")).await;
    assert!(whole.usage.prompt_tokens >= 800, "{:?}", whole.usage);
    let mut copies = Vec::new();
    for seed in 0..5 {
        let copy = agent.fork().await.unwrap();
        let options = AskOptions::seed(seed);
        let reply = copy.ask_with("And a sword?", options);
        copies.push((copy, end(reply).await));
    }
    let own = end(agent.ask("And a sword?")).await;
    // The question and its markers.
    for reply in copies.iter().map(|(_, reply)| reply).chain([&own]) {
        assert!(evaluated(reply) <= 20, "{:?}", reply.usage);
    }
    // Each copy shares all full pages: six conversations need little more room than one.
    let stats = engine.stats();
    let of_one = own.usage.prompt_tokens.div_ceil(16) + 3;
    assert!(stats.pages_used <= of_one + 5 * 6, "{} pages, {of_one} of one", stats.pages_used);
}

#[tokio::test]
async fn a_repeated_reply_and_a_rewind_evaluate_only_what_is_new() {
    let engine = demo().await;
    let agent = engine.agent_with(long());
    end(agent.ask("Hello.")).await;
    let again = end(agent.regenerate()).await;
    assert_eq!(evaluated(&again), 1, "the last token, whose output gives the first word");
    agent.rewind(6).unwrap();
    let next = end(agent.ask("And a sword?")).await;
    assert!(evaluated(&next) <= 20, "{:?}", next.usage);
    assert!(next.usage.prompt_tokens < again.usage.prompt_tokens);
}

/// Asks while the cache has any size: the conversation that the program knows is the engine's. A
/// new agent with these turns has the same prompt and the same reply.
#[tokio::test]
async fn a_resized_cache_loses_no_conversation() {
    let engine = demo().await;
    let pages = engine.stats().pages;
    let spec = AgentSpec { turns: Vec::new(), max_reply_tokens: 12, ..long() };
    let agent = engine.agent_with(spec.clone());
    let mut turns = Vec::new();
    let questions = ["Who are you?", "What does a horseshoe cost?", "And a sword?", "Why?"];
    let mut seed = 1_u32;
    for question in questions.iter().cycle().take(24) {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        engine.set_kv_tokens(160 + (seed >> 20) % 800);
        let reply = end(agent.ask(*question)).await;
        assert_eq!(reply.usage.dropped_turns, 0);
        turns.push(Turn::new(Speaker::User, *question));
        turns.push(Turn::new(Speaker::Agent, reply.text));
    }
    // The cache grows between two steps.
    engine.set_kv_tokens(16 * pages);
    while engine.stats().pages != pages {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let copy = engine.agent_with(AgentSpec { turns, ..spec });
    let own = end(agent.ask("Farewell.")).await;
    let copied = end(copy.ask("Farewell.")).await;
    assert!(own.usage.prompt_tokens > 500, "{:?}", own.usage);
    assert_eq!(own.usage.prompt_tokens, copied.usage.prompt_tokens);
    assert_eq!(own.text, copied.text);
}

/// An aside is not part of the conversation: later prompts are as without it.
#[tokio::test]
async fn an_aside_is_not_remembered() {
    let engine = demo().await;
    let spec = AgentSpec { turns: Vec::new(), max_reply_tokens: 12, ..long() };
    let [asked, plain] = [engine.agent_with(spec.clone()), engine.agent_with(spec)];
    for agent in [&asked, &plain] {
        end(agent.ask("Who are you?")).await;
    }
    let aside = AskOptions { aside: true, ..AskOptions::default() };
    let hidden = asked.ask_with("What do you feel?", aside);
    assert!(end(hidden).await.usage.reply_tokens > 0);
    let [first, second] =
        [end(asked.ask("And a sword?")).await, end(plain.ask("And a sword?")).await];
    assert_eq!(first.usage.prompt_tokens, second.usage.prompt_tokens);
    assert_eq!(first.text, second.text);
}
