//! KV pages: scarce pages, a smaller cache, and shared prefixes.

use walla_plan::Detail;
use walla_types::SeqId;

use super::*;
use crate::api::{Speaker, Turn};
use crate::engine_core::Control;
use crate::options::EngineError;

#[test]
fn scarce_pages_are_shared_and_all_replies_complete() {
    // 8 agents need up to 5 pages each; there are 12.
    let options = EngineOptions { kv_tokens: Some(12 * 16), ..options() };
    let mut scarce = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let mut plenty = Rig::free();
    let mut asks = Vec::new();
    for seed in 0..8 {
        let spec = speaker(seed, 50);
        let prompt = format!("agent {seed} begins to speak");
        let (a, b) = (scarce.agent(spec.clone()), plenty.agent(spec));
        asks.push((scarce.ask(a, tokens(&prompt)), plenty.ask(b, tokens(&prompt))));
    }
    scarce.run();
    plenty.run();
    scarce.assert_all_ended();
    for (a, b) in asks {
        // Preempted and recomputed, with the same text.
        assert_eq!(scarce.reply(a).text, plenty.reply(b).text);
    }
}

#[test]
fn no_sequence_is_preempted_for_a_background_agent() {
    // Each needs five pages at the end; there are seven.
    let options = EngineOptions { kv_tokens: Some(7 * 16), ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let far = rig.agent(AgentSpec { detail: Detail::Background, priority: 9, ..speaker(1, 50) });
    let first = rig.ask(far, tokens("somebody far away"));
    for _ in 0..5 {
        rig.advance();
    }
    let near = rig.agent(speaker(2, 50));
    let second = rig.ask(near, tokens("somebody in front of the player"));
    let mut cached = 0;
    while rig.reply(second).ends.is_empty() {
        rig.advance();
        let now = rig.core.kv.ledger().len(SeqId(1));
        assert!(now >= cached || !rig.reply(second).ends.is_empty(), "{now} after {cached}");
        cached = now;
    }
    assert!(rig.reply(first).ends.is_empty(), "it was the one to wait");
    rig.run();
    for (ask, seed, prompt) in
        [(first, 1, "somebody far away"), (second, 2, "somebody in front of the player")]
    {
        assert_eq!(rig.reply(ask).text, alone(&self::options(), speaker(seed, 50), prompt).text);
    }
    rig.assert_all_ended();
}

#[test]
fn a_reply_larger_than_the_cache_fails_without_affecting_others() {
    let options = EngineOptions { kv_tokens: Some(3 * 16), ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let agent = rig.agent(speaker(1, 4));
    let large = rig.ask(agent, tokens(&"x".repeat(60)));
    let small = rig.ask(agent, tokens("x"));
    rig.run();
    assert!(matches!(rig.reply(large).ends[..], [Err(ReplyError::NoPages { .. })]));
    assert!(rig.reply(small).ends[0].is_ok());
}

#[test]
fn a_smaller_cache_preempts_the_least_urgent_and_loses_no_text() {
    let scenario = |shrinks: bool| {
        let mut rig = Rig::free();
        let asks: Vec<_> = (0..8)
            .map(|seed| {
                let agent = rig.agent(AgentSpec { priority: seed, ..speaker(seed as u64, 40) });
                rig.ask(agent, tokens(&"long prompt ".repeat(3)))
            })
            .collect();
        for tick in 0..60 {
            rig.advance();
            if shrinks && tick % 7 == 3 {
                // At least 3 pages per agent; a reply needs 5 at the end.
                let kv_tokens = [16 * 8, 16 * 64, 16 * 5, 16 * 20][tick / 7 % 4];
                rig.core.control(Control::KvTokens(kv_tokens));
                let used = rig.core.kv.ledger().used_pages();
                assert!(used <= kv_tokens / 16, "{used} of {}", kv_tokens / 16);
                rig.advance();
                assert!(!rig.core.kv.is_resizing(), "steps in flight end within a round here");
                let stats = rig.core.stats();
                assert_eq!(stats.pages, kv_tokens / 16);
                let ledger = rig.core.kv.ledger();
                assert_eq!(ledger.pages_end(), stats.pages + 1, "and no page above is in use");
                ledger.assert_consistent();
                let urgent = rig.core.kv.ledger().len(SeqId(7));
                assert!(
                    urgent > 0
                        || rig.reply(asks[7]).tokens == 0
                        || !rig.reply(asks[7]).ends.is_empty()
                );
            }
        }
        rig.core.control(Control::KvTokens(u32::MAX));
        rig.advance();
        assert_eq!(rig.core.stats().pages, 64, "all that were loaded");
        rig.run();
        rig.assert_all_ended();
        asks.iter().map(|&ask| rig.reply(ask).text.clone()).collect::<Vec<_>>()
    };
    assert_eq!(scenario(true), scenario(false));
}

/// Common prefix of all prompts: more than two pages.
const LORE: &str =
    "the inn stands by the ford and the river sings all night to whoever listens to it";

#[test]
fn common_prompt_prefixes_are_evaluated_once() {
    let mut rig = Rig::free();
    let pages = |rig: &Rig| rig.core.kv.ledger().used_pages();
    let teller = rig.agent(speaker(1, 40));
    rig.ask(teller, tokens(&format!("{LORE}, says the innkeeper")));
    rig.run();
    let (own, read) = (pages(&rig), rig.core.stats().prefill_tokens);
    let page_tokens = rig.core.kv.ledger().options().page_tokens;
    let shared = LORE.len() as u32 / page_tokens * page_tokens;
    assert!(shared > page_tokens, "there is something to share");
    for (seed, end) in [(2, ", says the smith"), (3, ", asks the guard"), (4, "")] {
        let listener = rig.agent(speaker(seed, 12));
        let reply_id = rig.ask(listener, tokens(&format!("{LORE}{end}")));
        rig.run();
        let heard = rig.reply(reply_id).clone();
        // The last token is recomputed, and with it its page.
        let expected = if end.is_empty() {
            (LORE.len() as u32 - 1) / page_tokens * page_tokens
        } else {
            shared
        };
        assert_eq!(heard.usage.cached_tokens, expected, "{end:?}");
        let alone = alone(&options(), speaker(seed, 12), &format!("{LORE}{end}"));
        assert_eq!((heard.text, heard.ends), (alone.text, alone.ends), "{end:?}");
    }
    let each = rig.core.stats().prefill_tokens - read;
    assert!(each < 3 * u64::from(LORE.len() as u32 - shared + 20), "{each} tokens read by three");
    assert!(pages(&rig) < 2 * own + 2, "{} pages for four, {own} for one", pages(&rig));
    rig.assert_all_ended();
}

#[test]
fn simultaneous_asks_evaluate_a_common_prefix_once_or_twice() {
    let options = EngineOptions { context_tokens: 256, ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let lore = LORE.repeat(2);
    let asks: Vec<_> = (0..6)
        .map(|seed| {
            let agent = rig.agent(speaker(seed, 12));
            rig.ask(agent, tokens(&format!("{lore}, says number {seed}")))
        })
        .collect();
    rig.run();
    let read = rig.core.stats().prefill_tokens;
    assert!(read < 3 * lore.len() as u64 + 6 * 40, "{read} tokens read for {}", lore.len());
    for (seed, ask) in asks.into_iter().enumerate() {
        let prompt = format!("{lore}, says number {seed}");
        let alone = alone(&options, speaker(seed as u64, 12), &prompt);
        assert_eq!(rig.reply(ask).text, alone.text);
    }
}

#[test]
fn a_shared_prefix_survives_the_removal_of_its_source() {
    let mut rig = Rig::free();
    let teller = rig.agent(speaker(1, 40));
    rig.ask(teller, tokens(&format!("{LORE}, says the innkeeper")));
    rig.run();
    let listener = rig.agent(speaker(2, 12));
    let reply_id = rig.ask(listener, tokens(&format!("{LORE}, says the smith")));
    // The listener has begun when the teller is removed.
    for _ in 0..3 {
        rig.advance();
    }
    assert!(rig.core.stats().steps > 0 && rig.reply(reply_id).ends.is_empty());
    rig.command(Command::RemoveAgent { agent: teller });
    let stranger = rig.agent(speaker(5, 30));
    rig.ask(
        stranger,
        tokens("somebody else takes the pages that are free now, and writes into them"),
    );
    rig.run();
    let heard = rig.reply(reply_id).clone();
    let alone = alone(&options(), speaker(2, 12), &format!("{LORE}, says the smith"));
    assert_eq!(heard.text, alone.text);
    rig.assert_all_ended();
}

/// The teller's tokens occupy the positions in the penalty window where the lore's tokens were
/// recorded. Penalties of an agent that shares the lore must count the lore's tokens.
#[test]
fn penalties_of_a_shared_prompt_count_its_own_tokens() {
    let options = EngineOptions { context_tokens: 512, ..options() };
    let lore = LORE.repeat(2);
    let listener = || {
        let sampling = speaker(2, 1).sampling.to_builder().repetition_penalty(3.0);
        AgentSpec { sampling: sampling.build().expect("valid"), ..speaker(2, 12) }
    };
    let alone = alone(&options, listener(), &lore);
    let mut told = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let teller = told.agent(speaker(1, 330));
    told.ask(teller, tokens(&lore));
    told.run();
    let agent = told.agent(listener());
    let shared = told.ask(agent, tokens(&lore));
    told.run();
    let shared = told.reply(shared);
    assert!(shared.usage.cached_tokens > 0, "{shared:?}");
    assert_eq!(shared.text, alone.text);
}

/// A plan that submits nothing because a reply had to end is followed by another plan: the freed
/// pages may be enough for another agent.
#[test]
fn replies_without_free_pages_all_end_without_another_command() {
    for pages in [2, 3, 5] {
        let options = EngineOptions { kv_tokens: Some(16 * 8), ..options() };
        let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
        let agents: Vec<_> = (0..3).map(|seed| rig.agent(speaker(seed, 40))).collect();
        let asks: Vec<_> =
            agents.iter().map(|&agent| rig.ask(agent, tokens(&"x".repeat(90)))).collect();
        rig.advance();
        rig.core.control(Control::KvTokens(16 * pages));
        rig.run();
        rig.assert_all_ended();
        for ask in asks {
            let ends = &rig.reply(ask).ends;
            assert!(matches!(ends[..], [Err(ReplyError::NoPages { .. })]), "{pages}: {ends:?}");
        }
    }
}

#[test]
fn a_prompt_larger_than_the_whole_cache_fails_when_it_is_encoded() {
    let options = EngineOptions { kv_tokens: Some(16 * 3), ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let agent = rig.agent(speaker(1, 5));
    let raw = rig.ask(agent, tokens(&"x".repeat(49)));
    let fits = rig.ask(agent, tokens(&"x".repeat(40)));
    rig.run();
    let expected = ReplyError::NoPages { wanted_pages: 4, free_pages: 3 };
    assert_eq!(rig.reply(raw).ends, [Err(expected)]);
    assert_eq!(rig.reply(raw).started, 0);
    assert!(rig.reply(fits).ends[0].is_ok());
}

/// Older turns are also dropped if the cache is smaller than an agent's context.
#[test]
fn a_conversation_is_cut_to_the_cache() {
    let options = EngineOptions { kv_tokens: Some(16 * 5), ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let agent = rig.agent(AgentSpec { persona: String::new(), ..speaker(1, 4) });
    for _ in 0..6 {
        let ask = rig.ask(agent, Prompt::Chat("Who are you?".into()));
        rig.run();
        assert!(rig.reply(ask).ends[0].is_ok(), "{:?}", rig.reply(ask).ends);
    }
}

/// Asks while the cache has any size, in any order: the conversation keeps all turns, because they
/// fit in the context.
#[test]
fn a_smaller_cache_loses_no_turn() {
    for seed in 0..6_u32 {
        let options = EngineOptions { kv_tokens: Some(16 * 40), context_tokens: 512, ..options() };
        let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
        let persona = String::new();
        let agent = rig.agent(AgentSpec { persona, ..speaker(seed.into(), 4) });
        let (mut expected, mut replies, mut longest, mut left_out) = (Vec::new(), 0, 0, 0);
        for n in 0..14 {
            let roll = walla_device::philox4x32([n, 0, 0, 9], [seed, 1]);
            rig.core.control(Control::KvTokens(16 * (3 + roll[0] % 30)));
            if roll[1].is_multiple_of(3) {
                let seen = Turn::new(Speaker::Observation, format!("{n}"));
                rig.command(Command::AppendTurns { agent, turns: vec![seen.clone()] });
                expected.push(seen);
            }
            let ask = rig.ask(agent, Prompt::Chat(format!("Q{n}?")));
            rig.run();
            let heard = rig.reply(ask);
            assert_eq!(heard.usage.dropped_turns, 0, "{seed} {n}");
            // The smallest caches are too small for any reply.
            if heard.started > 0 && (!heard.text.is_empty() || heard.ends[0].is_ok()) {
                expected.push(Turn::new(Speaker::User, format!("Q{n}?")));
                expected.push(Turn::new(Speaker::Agent, heard.text.clone()));
                replies += 1;
                // The conversation grows, so a shorter prompt leaves turns out.
                left_out += usize::from(heard.usage.prompt_tokens < longest);
                longest = longest.max(heard.usage.prompt_tokens);
            }
            let slot = rig.core.agents.slot_of(agent).expect("it has a slot");
            let kept = rig.core.agents.get(slot).expect("it lives").history.turns();
            assert_eq!(**kept, expected, "{seed} {n}");
        }
        assert!(replies > 6 && left_out > 0, "{seed}: {replies} {left_out}");
    }
}

/// Turns that a conversation forgets are counted, and the rest is in the conversation.
#[test]
fn forgotten_turns_are_reported() {
    let mut rig = Rig::new(&options(), &inline_cpu(), Pacing::FreeRunning);
    let agent = rig.agent(AgentSpec { persona: String::new(), ..speaker(1, 4) });
    let mut dropped = 0;
    for asked in 1..20 {
        let ask = rig.ask(agent, Prompt::Chat("Who are you?".into()));
        rig.run();
        dropped += rig.reply(ask).usage.dropped_turns as usize;
        let slot = rig.core.agents.slot_of(agent).expect("it has a slot");
        let kept = rig.core.agents.get(slot).expect("it lives").history.turns().len();
        assert_eq!(dropped + kept, 2 * asked);
    }
    assert!(dropped > 0);
}

/// Both prompts fit alone. Pages of the one that is in the batch are reserved, but hold no tokens.
#[test]
fn a_prompt_waits_for_the_reserved_pages_of_another() {
    for (a, b) in [(270, 190), (190, 270), (280, 100)] {
        let options = EngineOptions {
            kv_tokens: Some(304),
            context_tokens: 512,
            max_prefill_tokens: Some(300),
            max_rows: Some(400),
            ..options()
        };
        let mut rig = Rig::new(&options, &inline_cpu(), Pacing::PerFrame { steps: 3 });
        let [one, two] = [1, 2].map(|seed| rig.agent(speaker(seed, 5)));
        let asks = [rig.ask(one, tokens(&"x".repeat(a))), rig.ask(two, tokens(&"y".repeat(b)))];
        (0..200).for_each(|_| rig.frame());
        for ask in asks {
            assert!(matches!(rig.reply(ask).ends[..], [Ok(_)]), "{:?}", rig.reply(ask));
        }
    }
}

/// A core with a model of 3 KiB per token on a CPU with 128 MiB, or its error.
fn on_small_machine(
    max_agents: Option<u32>,
    kv_tokens: Option<u32>,
    memory_mib: u64,
) -> Result<Core, EngineError> {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let shape = Model {
        width: 256,
        layers: 3,
        heads: 4,
        kv_heads: 4,
        head_dim: 64,
        context_train: 2_048,
        ..Model::TINY
    };
    let model = BYTES.get_or_init(|| {
        synth::write(&shape, Mixture::Q8_0, 7, Vec::new()).expect("a vector takes everything")
    });
    let options = EngineOptions {
        model: ModelSource::Static(model),
        context_tokens: 1_024,
        max_agents,
        kv_tokens,
        ..options()
    };
    let max_memory_bytes = Some(memory_mib << 20);
    let cpu = CpuOptions { inline: true, max_memory_bytes, ..CpuOptions::default() };
    let registry = Registry::new().with(CpuBackend::new(cpu));
    let go_on = &mut |_: f32| ControlFlow::Continue(());
    Core::load(&options, &registry, &Clock::real(), go_on)
}

#[test]
fn the_default_cache_of_a_cpu_is_a_part_of_the_free_memory() {
    let size = |max_agents, kv_tokens| {
        let core = on_small_machine(max_agents, kv_tokens, 128).expect("it fits");
        (core.agents.slots(), core.stats.pages, core.context_tokens)
    };
    // An eighth of the rest is nearly 16 MiB: five contexts of 64 pages, for agents
    // with a quarter of a context each.
    let (slots, pages, context_tokens) = size(None, None);
    assert!((19..=21).contains(&slots), "{slots} slots");
    assert!((310..=341).contains(&pages), "{pages} pages");
    assert_eq!(context_tokens, 1_024);
    // Settings win.
    assert_eq!(size(Some(8), None), (8, 8 * 64, 1_024));
    assert_eq!(size(Some(32), Some(4_096)), (32, 256, 1_024));
    assert_eq!(size(None, Some(2_048)).1, 128);
}

#[test]
fn a_cache_that_does_not_fit_is_an_error() {
    let is_refused = |max_agents, memory_mib| {
        let error = on_small_machine(max_agents, None, memory_mib).err();
        let exec = |error: &EngineError| match error {
            EngineError::Device(error) => error.to_string(),
            error => panic!("{error}"),
        };
        error.is_some_and(|error| exec(&error).contains("keys and values"))
    };
    // The least, four contexts, has 12 MiB.
    assert!(is_refused(None, 8));
    assert!(!is_refused(None, 32));
    assert!(is_refused(Some(64), 128), "64 contexts have 192 MiB");
}
