//! Saved caches: an agent of a new engine speaks as the one that was saved, and evaluates only its
//! question. With a damaged or foreign file it evaluates its conversation.

use walla_device::KvType;
use walla_doubles::FaultPlan;
use walla_doubles::synth::{Convolutions, Experts};
use walla_model::spec::Architecture;

use super::fallback::with_spare;
use super::*;
use crate::api::{CacheError, CacheJob, CacheTicket, Turn};
use crate::cache_file::KvFileError;
use crate::engine_core::Control;

/// Several pages.
const PERSONA: &str =
    "the inn stands by the ford and the river sings all night to whoever listens to it";

fn wide(model: &'static [u8]) -> EngineOptions {
    let model = ModelSource::Static(model);
    EngineOptions { model, context_tokens: 512, kv_tokens: Some(8 * 512), ..options() }
}

fn free(options: &EngineOptions) -> Rig {
    Rig::new(options, &inline_cpu(), Pacing::FreeRunning)
}

fn chatty() -> AgentSpec {
    AgentSpec { persona: PERSONA.into(), ..speaker(6, 20) }
}

fn said(rig: &mut Rig, agent: AgentId, text: &str) -> Heard {
    let ask = rig.ask(agent, Prompt::Chat(text.into()));
    rig.run();
    rig.reply(ask).clone()
}

fn talked(rig: &mut Rig) -> AgentId {
    let agent = rig.agent(chatty());
    said(rig, agent, "Who are you?");
    said(rig, agent, "Where am I?");
    agent
}

fn turns(rig: &mut Rig, agent: AgentId) -> Vec<Turn> {
    rig.core.agents.of_client(HOST, agent).expect("it lives").history.turns().to_vec()
}

fn copy(rig: &mut Rig, agent: AgentId, (ticket, job): (CacheTicket, CacheJob)) -> CacheJob {
    rig.command(Command::CopyCache { agent, ticket });
    job
}

fn save(rig: &mut Rig, agent: AgentId) -> Result<Vec<u8>, CacheError> {
    let job = copy(rig, agent, CacheTicket::save_bytes());
    rig.run();
    let copied = job.result().expect("it has ended")?;
    let bytes = job.take_bytes().expect("a file");
    assert_eq!(copied.file_bytes, bytes.len() as u64);
    Ok(bytes)
}

fn load(rig: &mut Rig, agent: AgentId, bytes: &[u8]) -> Result<u32, CacheError> {
    let job = copy(rig, agent, CacheTicket::load_bytes(bytes));
    rig.run();
    job.result().expect("it has ended").map(|copied| copied.tokens)
}

/// Runs until a job has ended, without a reply in progress.
fn is_returned(rig: &Rig) {
    assert!(rig.core.transfers.is_empty());
    let seq = rig.core.kv.executor().options().cache_sequences() - 1;
    assert!(!rig.core.kv.holds_pages(seq as usize), "all pages are returned");
}

fn evaluated(heard: &Heard) -> u32 {
    heard.usage.prompt_tokens - heard.usage.cached_tokens
}

fn leak(model: &Model) -> &'static [u8] {
    synth::write(model, Mixture::Q8_0, 7, Vec::new()).expect("it is written").leak()
}

/// One small model for each kind of layer.
fn models() -> [&'static [u8]; 4] {
    let sliding = Model {
        architecture: Architecture::Gemma3,
        layers: 3,
        window: Some(32),
        tied: true,
        ..Model::TINY
    };
    let convolutions = Model {
        architecture: Architecture::Lfm2Moe,
        layers: 3,
        experts: Some(Experts { count: 4, used: 2, hidden: 32, dense_layers: 1 }),
        convolutions: Some(Convolutions { taps: 3, attention_layers: &[1] }),
        tied: true,
        ..Model::TINY
    };
    [model(), leak(&sliding), leak(&convolutions), recurrent_model()]
}

/// A save that is requested at the end of a reply needs no time to
/// pass: the end of the preparation continues it, not a timer.
#[test]
fn a_save_behind_a_reply_waits_for_no_timer() {
    for (index, model) in models().into_iter().enumerate() {
        for max_reply_tokens in [1, 2, 5, 20] {
            for later in 0..4 {
                let mut rig = free(&wide(model));
                let agent = rig.agent(AgentSpec { max_reply_tokens, ..chatty() });
                let ask = rig.ask(agent, Prompt::Chat("Who are you?".into()));
                while rig.reply(ask).ends.is_empty() {
                    rig.advance();
                }
                (0..later).for_each(|_| _ = rig.advance());
                let job = copy(&mut rig, agent, CacheTicket::save_bytes());
                while job.result().is_none() {
                    let next = rig.advance();
                    let sleeps = match next {
                        Advance::Idle => true,
                        Advance::Pause(micros) => micros > 10_000,
                        Advance::Again | Advance::Poll => false,
                    };
                    assert!(!sleeps || job.result().is_some(), "{index} {later}: {next:?}");
                }
                let copied = job.result().expect("it has ended");
                assert!(copied.is_ok(), "{index} {max_reply_tokens} {later}: {copied:?}");
            }
        }
    }
}

#[test]
fn an_agent_of_a_new_engine_speaks_as_before_and_evaluates_only_its_question() {
    for (index, model) in models().into_iter().enumerate() {
        let kv_types =
            if index == 0 { &[KvType::F32, KvType::F16, KvType::Q8][..] } else { &[KvType::F16] };
        for &kv_type in kv_types {
            let options = EngineOptions { kv_type, ..wide(model) };
            let mut warm = free(&options);
            let agent = talked(&mut warm);
            let turns = turns(&mut warm, agent);
            warm.core.transfers.set_chunk_pages(1_000);
            let bytes = save(&mut warm, agent).expect("it is saved");
            is_returned(&warm);
            let expected = said(&mut warm, agent, "And now?");
            assert!(!expected.text.is_empty(), "model {index}");
            for chunk_pages in [1, 3, 1_000] {
                let mut cold = free(&options);
                cold.core.transfers.set_chunk_pages(1_000);
                let spec = AgentSpec { turns: turns.clone(), ..chatty() };
                let agent = cold.agent(spec);
                let tokens = load(&mut cold, agent, &bytes).expect("it is loaded");
                is_returned(&cold);
                // The file with smaller chunks has the same tokens.
                cold.core.transfers.set_chunk_pages(chunk_pages);
                let again = save(&mut cold, agent).expect("it is saved");
                assert_eq!((again == bytes, again.len()), (chunk_pages == 1_000, bytes.len()));
                cold.core.transfers.set_chunk_pages(1_000);
                let next = cold.agent(AgentSpec { turns: turns.clone(), ..chatty() });
                let loaded = load(&mut cold, next, &again);
                assert_eq!(loaded, Ok(tokens), "model {index}, {chunk_pages} pages");
                let heard = [agent, next].map(|agent| said(&mut cold, agent, "And now?"));
                for heard in &heard {
                    assert_eq!(heard.text, expected.text, "model {index}, {kv_type:?}");
                    assert_eq!(heard.ends, expected.ends);
                }
                let counts = heard.each_ref().map(evaluated);
                assert_eq!(counts, [evaluated(&expected); 2], "model {index}");
                is_returned(&cold);
            }
        }
    }
}

#[test]
fn a_prepared_agent_is_saved_with_its_preparation() {
    for model in [model(), recurrent_model()] {
        let options = EngineOptions { background_prefill: true, ..wide(model) };
        let mut warm = free(&options);
        let agent = warm.agent(chatty());
        let ask = warm.ask(agent, Prompt::Chat("Who are you?".into()));
        while warm.reply(ask).ends.is_empty() {
            warm.advance();
        }
        // The preparation begins after the reply, and the save waits for it.
        let bytes = save(&mut warm, agent).expect("it is saved");
        let turns = turns(&mut warm, agent);
        let expected = said(&mut warm, agent, "And now?");
        let spec = AgentSpec { turns, ..chatty() };
        let mut cold = free(&options);
        let agent = cold.agent(spec.clone());
        load(&mut cold, agent, &bytes).expect("it is loaded");
        cold.run();
        assert_eq!(cold.core.stats().background_tokens, 0, "nothing is left to prepare");
        let mut cold = free(&options);
        let agent = cold.agent(spec);
        let job = copy(&mut cold, agent, CacheTicket::load_bytes(bytes));
        // The ask waits for the load.
        let heard = said(&mut cold, agent, "And now?");
        assert!(job.result().expect("it has ended").is_ok());
        assert_eq!(heard.text, expected.text);
        assert_eq!(evaluated(&heard), evaluated(&expected));
    }
}

#[test]
fn a_file_has_nothing_of_other_agents() {
    let options = wide(model());
    let alone = |before: u32| {
        let mut rig = free(&options);
        for n in 0..before {
            let other = rig.agent(AgentSpec { persona: "x".repeat(200), ..speaker(n.into(), 30) });
            said(&mut rig, other, "Hello?");
            rig.command(Command::RemoveAgent { agent: other });
            rig.run();
        }
        let agent = talked(&mut rig);
        save(&mut rig, agent).expect("it is saved")
    };
    assert!(alone(0) == alone(3), "the same bytes in pages that others have used");
}

/// The error of a load, after which the agent speaks as without it.
fn refused(options: &EngineOptions, registry: &Registry, bytes: &[u8]) -> CacheError {
    let mut rig = Rig::new(options, registry, Pacing::FreeRunning);
    let agent = rig.agent(speaker(3, 6));
    let error = load(&mut rig, agent, bytes).expect_err("it is refused");
    is_returned(&rig);
    let ask = rig.ask(agent, tokens("Once upon a time"));
    rig.run();
    let heard = rig.reply(ask);
    assert_eq!(heard.ends, [Ok(FinishReason::Length)]);
    assert_eq!(heard.usage.cached_tokens, 0);
    error
}

#[test]
fn files_of_other_engines_are_refused_with_the_reason() {
    let options = wide(model());
    let mut rig = free(&options);
    let agent = talked(&mut rig);
    let bytes = save(&mut rig, agent).expect("it is saved");
    let weights = synth::write(&Model::TINY, Mixture::Q8_0, 8, Vec::new()).expect("it is written");
    let [_, sliding, ..] = models();
    let cpu = inline_cpu();
    let refused =
        |options: &EngineOptions, registry: &Registry| match refused(options, registry, &bytes) {
            CacheError::File(error) => error,
            other => panic!("{other}"),
        };
    let other = refused(&wide(weights.leak()), &cpu);
    assert!(matches!(other, KvFileError::OtherModel { .. }), "{other}");
    let other = refused(&wide(sliding), &cpu);
    assert!(matches!(other, KvFileError::OtherArchitecture { .. }), "{other}");
    let other = refused(&EngineOptions { kv_type: KvType::Q8, ..options.clone() }, &cpu);
    assert!(matches!(other, KvFileError::OtherKvType { found: "F16", .. }), "{other}");
    let short = EngineOptions { context_tokens: 64, ..options.clone() };
    let other = refused(&short, &cpu);
    assert!(matches!(other, KvFileError::TooManyTokens { .. }), "{other}");
}

/// A manipulated file changes the replies of its agent only.
#[test]
fn a_file_that_was_changed_with_its_checksum_affects_its_agent_alone() {
    for model in [model(), recurrent_model()] {
        let options = wide(model);
        let mut rig = free(&options);
        let agent = talked(&mut rig);
        let history = turns(&mut rig, agent);
        let mut bytes = save(&mut rig, agent).expect("it is saved");
        let expected = said(&mut rig, agent, "And now?");
        let header = u32::from_le_bytes(bytes[12..16].try_into().expect("4 bytes")) as usize;
        let (first, end) = (bytes.len() / 4, bytes.len() - 4);
        // Other numbers, all finite.
        bytes[first..end - 64].iter_mut().for_each(|byte| *byte ^= 0x81);
        let sum = crc32fast::hash(&bytes[header..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&sum);
        let mut rig = free(&options);
        let spec = AgentSpec { turns: history, ..chatty() };
        let loader = rig.agent(spec.clone());
        let Ok(tokens) = load(&mut rig, loader, &bytes) else { continue };
        assert!(tokens > 100, "{tokens}");
        let fork = AgentId(rig.name());
        rig.command(Command::ForkAgent { agent: fork, source: loader, spec: None });
        let heard = [loader, fork].map(|agent| said(&mut rig, agent, "And now?"));
        assert_ne!(heard[0].text, expected.text);
        assert_eq!(heard[0].text, heard[1].text, "a copy has the same memory");
        for _ in 0..2 {
            let other = rig.agent(spec.clone());
            let heard = said(&mut rig, other, "And now?");
            assert_eq!(heard.text, expected.text);
        }
    }
}

/// The largest numbers that a file may have lead to no NaN in pages, which others use later.
#[test]
fn extreme_numbers_in_a_file_leave_nothing_in_pages() {
    let kinds = [KvType::F16, KvType::Q8, KvType::F32].map(|kv_type| (model(), kv_type));
    for (model, kv_type) in kinds.into_iter().chain([(recurrent_model(), KvType::F16)]) {
        let options = EngineOptions { kv_type, kv_tokens: Some(512), ..wide(model) };
        let mut rig = free(&options);
        let agent = talked(&mut rig);
        let history = turns(&mut rig, agent);
        let mut bytes = save(&mut rig, agent).expect("it is saved");
        let expected = said(&mut rig, agent, "And now?");
        let header = u32::from_le_bytes(bytes[12..16].try_into().expect("4 bytes")) as usize;
        let body = header..bytes.len() - 4;
        let binding = rig.core.transfers.binding();
        let tokens = u32::from_le_bytes(bytes[40..44].try_into().expect("4 bytes")) as usize;
        let pages = header + 4 * tokens;
        let states = body.end - binding.image.state_bytes();
        // Alternating signs of the largest number of each type.
        let largest: &[u8] = match kv_type {
            KvType::F16 => &[0xff, 0x7b, 0xff, 0xfb],
            KvType::Q8 => &[0x07, 0x60],
            _ => &[0x00, 0xe0, 0x7f, 0x47, 0x00, 0xe0, 0x7f, 0xc7],
        };
        for (to, from) in bytes[pages..states].iter_mut().zip(largest.iter().cycle()) {
            *to = *from;
        }
        let state = [0x00, 0x00, 0x80, 0x4b, 0x00, 0x00, 0x80, 0xcb];
        for (to, from) in bytes[states..body.end].iter_mut().zip(state.iter().cycle()) {
            *to = *from;
        }
        let sum = crc32fast::hash(&bytes[body.clone()]).to_le_bytes();
        bytes[body.end..].copy_from_slice(&sum);
        let mut rig = free(&options);
        let spec = AgentSpec { turns: history, ..chatty() };
        let loader = rig.agent(spec.clone());
        load(&mut rig, loader, &bytes).expect("it is loaded");
        said(&mut rig, loader, "And now?");
        assert!(rig.core.agents.slot_of(loader).is_some());
        rig.command(Command::RemoveAgent { agent: loader });
        rig.run();
        // All pages of the small cache are used again.
        for _ in 0..3 {
            let other = rig.agent(spec.clone());
            let heard = said(&mut rig, other, "And now?");
            assert_eq!(heard.text, expected.text, "{kv_type:?}");
        }
    }
}

#[test]
fn a_file_of_another_conversation_only_costs_its_evaluation() {
    let options = wide(model());
    let mut rig = free(&options);
    let agent = talked(&mut rig);
    let bytes = save(&mut rig, agent).expect("it is saved");
    let spec = AgentSpec { persona: "a smith".into(), ..speaker(1, 12) };
    let mut alone = free(&options);
    let only = alone.agent(spec.clone());
    let expected = said(&mut alone, only, "Who are you?");
    let mut rig = free(&options);
    let other = rig.agent(spec);
    load(&mut rig, other, &bytes).expect("it is loaded");
    assert_eq!(said(&mut rig, other, "Who are you?").text, expected.text);
}

#[test]
fn saves_and_loads_meet_speaking_parked_and_removed_agents() {
    let options = EngineOptions { max_agents: Some(2), ..wide(model()) };
    let mut rig = free(&options);
    let agent = talked(&mut rig);
    // While it speaks, its evaluated tokens are saved, and nothing can be loaded.
    let ask = rig.ask(agent, Prompt::Chat("And now?".into()));
    while rig.reply(ask).tokens < 3 {
        rig.advance();
    }
    let saved = copy(&mut rig, agent, CacheTicket::save_bytes());
    let loaded = copy(&mut rig, agent, CacheTicket::load_bytes(vec![0; 10]));
    assert_eq!(loaded.result(), Some(Err(CacheError::Asked)));
    rig.run();
    let copied = saved.result().expect("it has ended").expect("it is saved");
    let prompt_tokens = rig.reply(ask).usage.prompt_tokens;
    assert!(copied.tokens > prompt_tokens, "{copied:?}, {prompt_tokens}");
    let bytes = saved.take_bytes().expect("a file");
    // An agent that was removed during a save, and one during a load.
    let saved = copy(&mut rig, agent, CacheTicket::save_bytes());
    rig.advance();
    rig.command(Command::RemoveAgent { agent });
    rig.run();
    assert!(saved.result().expect("it has ended").is_ok());
    let brief = rig.agent(chatty());
    let loaded = copy(&mut rig, brief, CacheTicket::load_bytes(bytes.clone()));
    rig.command(Command::RemoveAgent { agent: brief });
    rig.run();
    assert_eq!(loaded.result(), Some(Err(CacheError::UnknownAgent)));
    let unknown = copy(&mut rig, AgentId(999), CacheTicket::save_bytes());
    assert_eq!(unknown.result(), Some(Err(CacheError::UnknownAgent)));
    // Two slots, three agents.
    let agents = [0, 1, 2].map(|seed| rig.agent(speaker(seed, 3)));
    assert_eq!(load(&mut rig, agents[2], &bytes), Err(CacheError::NoSlot));
    assert_eq!(save(&mut rig, agents[2]), Err(CacheError::NotCached));
    assert_eq!(save(&mut rig, agents[0]), Err(CacheError::NotCached), "never asked");
    is_returned(&rig);
    // A host that leaves.
    let left = copy(&mut rig, agents[0], CacheTicket::load_bytes(bytes));
    rig.core.remove_client(HOST);
    assert_eq!(left.result(), Some(Err(CacheError::EngineGone)));
    rig.run();
    assert_eq!(rig.core.kv.ledger().used_pages(), 0);
}

#[test]
fn without_pages_a_copy_ends_and_agents_speak() {
    let options = wide(model());
    let mut rig = free(&options);
    let agent = talked(&mut rig);
    let bytes = save(&mut rig, agent).expect("it is saved");
    // The agent holds all pages.
    let used = rig.core.kv.ledger().used_pages();
    rig.core.control(Control::KvTokens(16 * (used + 2)));
    let other = rig.agent(chatty());
    assert_eq!(load(&mut rig, other, &bytes), Err(CacheError::NoPages));
    is_returned(&rig);
    // A save keeps the pages of its agent until another needs them.
    rig.core.transfers.set_chunk_pages(1);
    let budget = std::time::Duration::from_millis(1);
    rig.core.control(Control::Budget(FrameBudget::Time(budget)));
    rig.run();
    let saved = copy(&mut rig, agent, CacheTicket::save_bytes());
    rig.advance();
    rig.command(Command::RemoveAgent { agent });
    rig.core.control(Control::KvTokens(16));
    assert_eq!(saved.result(), Some(Err(CacheError::NoPages)));
    // Steps take real time, which a slow machine would have to wait for.
    rig.core.control(Control::Budget(FrameBudget::Unlimited));
    rig.core.control(Control::KvTokens(u32::MAX));
    assert!(!said(&mut rig, other, "Who are you?").text.is_empty());
    is_returned(&rig);
}

#[test]
fn a_lost_device_ends_the_copy_and_no_reply() {
    let options = wide(model());
    let mut alone = free(&options);
    let agent = talked(&mut alone);
    let bytes = save(&mut alone, agent).expect("it is saved");
    let history = turns(&mut alone, agent);
    let expected = said(&mut alone, agent, "And now?");
    for is_load in [false, true] {
        let (registry, handle) = with_spare(FaultPlan::new(1));
        let mut rig = Rig::new(&options, &registry, Pacing::FreeRunning);
        let (agent, ticket) = if is_load {
            let agent = rig.agent(AgentSpec { turns: history.clone(), ..chatty() });
            (agent, CacheTicket::load_bytes(bytes.clone()))
        } else {
            (talked(&mut rig), CacheTicket::save_bytes())
        };
        let job = copy(&mut rig, agent, ticket);
        handle.lose();
        let ask = rig.ask(agent, Prompt::Chat("And now?".into()));
        fallback::run_and_lose(&mut rig, &options, (&registry, &handle), Some(0));
        assert!(matches!(job.result(), Some(Err(CacheError::Device(_)))), "{job:?}");
        assert_eq!(rig.reply(ask).text, expected.text);
        is_returned(&rig);
    }
}

/// An agent that has answered, with a budget of 2 ms per frame.
fn budgeted() -> (Rig, AgentId) {
    let mut rig = Rig::budgeted(&wide(model()), 2_000, Pacing::default());
    let agent = rig.agent(chatty());
    let ask = rig.ask(agent, Prompt::Chat("Who are you?".into()));
    while rig.reply(ask).ends.is_empty() {
        rig.frame();
    }
    (rig, agent)
}

#[test]
fn copies_keep_to_a_part_of_the_budget() {
    let (mut rig, agent) = budgeted();
    rig.core.transfers.set_chunk_pages(1);
    let saved = copy(&mut rig, agent, CacheTicket::save_bytes());
    let pages = rig.core.kv.ledger().used_pages();
    assert!(pages >= 8, "{pages}");
    let mut frames = 0;
    while saved.result().is_none() {
        rig.frame();
        frames += 1;
    }
    // One copy of at most a megabyte in a quarter of 2 ms.
    assert!((pages..pages + 4).contains(&frames), "{frames} frames for {pages} pages");
    // A pause: no copy begins.
    rig.core.control(Control::Budget(FrameBudget::Time(std::time::Duration::ZERO)));
    let paused = copy(&mut rig, agent, CacheTicket::save_bytes());
    (0..30).for_each(|_| rig.frame());
    assert_eq!(paused.result(), None);
    rig.core.control(Control::Budget(FrameBudget::Unlimited));
    rig.run();
    assert!(paused.result().expect("it has ended").is_ok());
}

/// The thread for files hangs in a load, which is given up. Jobs that follow neither get its error
/// nor fail while the thread is away for a short time.
#[test]
fn a_file_that_hangs_affects_no_later_job() {
    let (mut rig, agent) = budgeted();
    let brief = rig.agent(chatty());
    for is_released_early in [true, false] {
        rig.core.transfers.set_chunk_pages(1);
        rig.core.transfers.hold_files(true);
        let hangs = copy(&mut rig, brief, CacheTicket::load("/nowhere/greta.kv"));
        let asked_micros = rig.now_micros;
        while hangs.result().is_none() {
            rig.frame();
        }
        assert_eq!(hangs.result(), Some(Err(CacheError::TooSlow)));
        assert!(rig.now_micros - asked_micros < 2_100_000);
        let saved = copy(&mut rig, agent, CacheTicket::save_bytes());
        (0..if is_released_early { 2 } else { 40 }).for_each(|_| rig.frame());
        assert_eq!(saved.result(), None);
        rig.core.transfers.hold_files(false);
        while saved.result().is_none() {
            rig.frame();
        }
        let copied = saved.result().expect("it has ended").expect("it is saved");
        assert!(copied.tokens > 50, "{copied:?}");
        // A load waits too.
        rig.core.transfers.hold_files(true);
        let hangs = copy(&mut rig, brief, CacheTicket::load("/nowhere/greta.kv"));
        while hangs.result().is_none() {
            rig.frame();
        }
        let next = rig.agent(chatty());
        rig.core.transfers.set_chunk_pages(1_000);
        let bytes = saved.take_bytes().expect("a file");
        let loaded = copy(&mut rig, next, CacheTicket::load_bytes(bytes));
        (0..3).for_each(|_| rig.frame());
        assert_eq!(loaded.result(), None);
        rig.core.transfers.hold_files(false);
        while loaded.result().is_none() {
            rig.frame();
        }
        assert_eq!(loaded.result().expect("it has ended").map(|c| c.tokens), Ok(copied.tokens));
        // For ever: each job ends in time.
        rig.core.transfers.hold_files(true);
        let hangs = [agent, brief].map(|agent| copy(&mut rig, agent, CacheTicket::save_bytes()));
        let asked_micros = rig.now_micros;
        while hangs.iter().any(|job| job.result().is_none()) {
            rig.frame();
        }
        assert_eq!(hangs[0].result(), Some(Err(CacheError::TooSlow)));
        assert!(rig.now_micros - asked_micros < 14_000_000);
        rig.core.transfers.hold_files(false);
        rig.frame();
        rig.command(Command::RemoveAgent { agent: next });
        is_returned(&rig);
    }
}
