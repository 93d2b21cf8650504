//! Devices that are lost, fail or are slow while agents reason.

use walla_doubles::faulty::VirtualClock;

use super::super::fallback::{run_and_lose, with_spare};
use super::super::faults::run_to_the_end;
use super::*;
use crate::api::ContextPolicy;

/// Replies of six agents with different limits. The device is lost after some rounds.
fn scenario(options: &EngineOptions, lose_after: Option<usize>) -> Vec<Heard> {
    let options = EngineOptions { kv_tokens: Some(16 * 50), ..options.clone() };
    let (registry, handle) = with_spare(FaultPlan::new(1));
    let mut rig = Rig::new(&options, &registry, Pacing::FreeRunning);
    let [open, close] = THINK.map(|text| token(&rig, text));
    let mut asks = Vec::new();
    for seed in 0..6 {
        let mut allowed = vec![97, 98, 99, close];
        allowed.extend((seed % 2 == 0).then_some(open));
        let agent = rig.agent(drawing(seed, &allowed, (15, 4 + seed as u32)));
        asks.push(rig.ask(agent, chat("Hello, tell me more")));
        asks.push(rig.ask(agent, chat("And then?")));
    }
    run_and_lose(&mut rig, &options, (&registry, &handle), lose_after);
    asks.iter().map(|&ask| rig.reply(ask).clone()).collect()
}

#[test]
fn a_lost_device_does_not_change_speech_or_reasoning() {
    let options = model("<think>\n", &THINK);
    let undisturbed = scenario(&options, None);
    let closed = undisturbed.iter().filter(|heard| !heard.text.is_empty()).count();
    assert!(closed > 8, "{undisturbed:?}");
    for round in [1, 3, 6, 9, 12, 15, 20, 26] {
        for (heard, expected) in scenario(&options, Some(round)).iter().zip(&undisturbed) {
            assert_eq!((&heard.text, &heard.reasoning), (&expected.text, &expected.reasoning));
            assert_eq!(heard.ends, expected.ends);
            let tokens = |heard: &Heard| (heard.usage.reply_tokens, heard.usage.reasoning_tokens);
            assert_eq!(tokens(heard), tokens(expected), "{round}");
        }
    }
}

/// Failing and slow devices, scarce pages, cancels and full queues: each reply ends once, with the
/// text that the agent would generate alone.
#[test]
fn seeded_fault_schedules_with_reasoning_complete() {
    let options = EngineOptions {
        context_tokens: 128,
        kv_tokens: Some(16 * 24),
        ..model("<think>\n", &THINK)
    };
    let mut compared = 0;
    for seed in 0..25_u64 {
        let clock = VirtualClock::new();
        let plan = FaultPlan::new(seed).clock(&clock).delay_micros(0..=400).fail_in_play(3_000);
        let mut rig = Rig::new(&options, &faulty(plan).0, Pacing::default());
        let [open, close] = THINK.map(|text| token(&rig, text));
        let end = token(&rig, "<|im_end|>");
        let mut random =
            (0u32..).map(|n| walla_device::philox4x32([n, 0, 0, 5], [seed as u32, 1])[0]);
        let mut draw = move |below: u32| random.next().unwrap_or_default() % below;
        let specs: Vec<_> = (0..6)
            .map(|_| {
                let mut allowed = vec![97, 98, 99, open];
                allowed.extend([close, end].into_iter().filter(|_| draw(2) == 0));
                let policy = [ContextPolicy::DropOldest, ContextPolicy::Stop][draw(2) as usize];
                AgentSpec {
                    context_policy: policy,
                    ..drawing(u64::from(draw(99)), &allowed, (1 + draw(30), draw(30)))
                }
            })
            .collect();
        let agents: Vec<_> = specs.iter().map(|spec| rig.agent(spec.clone())).collect();
        let mut asks = Vec::new();
        for _ in 0..60 {
            let who = draw(6) as usize;
            match draw(6) {
                0 | 1 => {
                    let question = "Hi".repeat(1 + draw(9) as usize);
                    asks.push((who, rig.ask(agents[who], chat(&question)), question));
                }
                2 if !asks.is_empty() => {
                    let (who, reply_id, _) = &asks[draw(asks.len() as u32) as usize];
                    let (agent, reply_id) = (agents[*who], *reply_id);
                    rig.command(Command::Cancel { agent, reply_id });
                }
                3 => rig.core.control(crate::engine_core::Control::KvTokens(16 * (9 + draw(20)))),
                4 => rig.room = Some(draw(5) as usize),
                _ => rig.room = None,
            }
            rig.frame();
            clock.advance(200 + u64::from(draw(2_000)));
        }
        rig.room = None;
        run_to_the_end(&mut rig, &clock);
        for heard in rig.heard.values() {
            assert!(!heard.text.contains("think"), "{heard:?}");
        }
        // The first reply of an agent depends on no earlier event.
        for (who, spec) in specs.iter().enumerate() {
            let Some((_, ask, question)) = asks.iter().find(|(of, ..)| *of == who) else {
                continue;
            };
            let heard = rig.reply(*ask);
            if matches!(heard.ends[..], [Err(_) | Ok(FinishReason::Cancelled)]) {
                continue;
            }
            let mut alone = self::rig(&EngineOptions { kv_tokens: None, ..options.clone() });
            let agent = alone.agent(spec.clone());
            let retold = alone.ask(agent, chat(question));
            alone.run();
            let retold = alone.reply(retold);
            assert_eq!(
                (&retold.text, &retold.reasoning),
                (&heard.text, &heard.reasoning),
                "{seed}"
            );
            compared += 1;
        }
    }
    assert!(compared > 60, "{compared}");
}
