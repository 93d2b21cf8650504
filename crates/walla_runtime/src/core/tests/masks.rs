//! Replies of allowed tokens only.

use std::sync::Arc;

use walla_types::TokenMask;

use super::*;

/// Vocabulary size of the tiny model.
const VOCAB: u32 = 300;

fn allowing(tokens: impl IntoIterator<Item = u32>) -> Arc<TokenMask> {
    Arc::new(TokenMask::allow(VOCAB, tokens.into_iter().map(TokenId)).expect("a mask"))
}

fn masked(seed: u64, mask: &Arc<TokenMask>) -> AgentSpec {
    let spec = speaker(seed, 20);
    let sampling = spec.sampling.to_builder().allowed_tokens(Arc::clone(mask)).candidates(3);
    AgentSpec { sampling: sampling.build().expect("valid"), ..spec }
}

#[test]
fn a_reply_has_only_allowed_tokens_independent_of_other_masks() {
    assert!(rig_vocab() >= VOCAB);
    let mask = allowing([97, 98, 120, 255]);
    let alone = {
        let mut rig = Rig::free();
        let agent = rig.agent(masked(5, &mask));
        let reply_id = rig.ask(agent, tokens("hello"));
        rig.run();
        assert_eq!(rig.reply(reply_id).ends, [Ok(FinishReason::Length)]);
        sampled_tokens(&rig, agent, 5)
    };
    assert_eq!(alone.len(), 20);
    assert!(alone.iter().all(|token| mask.allows(*token)), "{alone:?}");
    assert!(alone.iter().any(|token| *token != alone[0]), "there is a choice: {alone:?}");

    // A mask for each agent, shared masks, and agents without a mask: every reply ends and uses
    // only its own mask.
    let options = EngineOptions { max_agents: Some(16), ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let masks: Vec<_> = (0..11).map(|i| allowing(i * 20..i * 20 + 7)).collect();
    let mut agents: Vec<_> = masks.iter().map(|mask| (masked(9, mask), Some(mask))).collect();
    agents.push((masked(9, &masks[0]), Some(&masks[0])));
    agents.push((speaker(9, 20), None));
    agents.push((masked(5, &mask), Some(&mask)));
    let agents: Vec<_> = agents.into_iter().map(|(spec, mask)| (rig.agent(spec), mask)).collect();
    for (agent, _) in &agents {
        rig.ask(*agent, tokens("hello"));
    }
    rig.run();
    rig.assert_all_ended();
    for (agent, mask) in &agents {
        let said = sampled_tokens(&rig, *agent, 5);
        assert!(mask.is_none_or(|mask| said.iter().all(|token| mask.allows(*token))), "{said:?}");
    }
    assert_eq!(sampled_tokens(&rig, agents[13].0, 5), alone, "other agents change nothing");
    assert_eq!(sampled_tokens(&rig, agents[0].0, 5), sampled_tokens(&rig, agents[11].0, 5));
}

#[test]
fn agents_with_masks_of_their_own_share_steps() {
    let steps = |mask_of: &dyn Fn(u64) -> Option<Arc<TokenMask>>| {
        let options = EngineOptions { max_agents: Some(30), ..options() };
        let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
        for n in 0..30 {
            let spec = mask_of(n).map_or_else(|| speaker(n, 20), |mask| masked(n, &mask));
            let agent = rig.agent(spec);
            rig.ask(agent, tokens("ab"));
        }
        rig.run();
        rig.assert_all_ended();
        rig.core.stats().steps
    };
    let same = allowing(97..120);
    let with_one = steps(&|_| Some(Arc::clone(&same)));
    assert_eq!(steps(&|n| Some(allowing([97 + n as u32, 98 + n as u32, 99 + n as u32]))), with_one);
}

fn rig_vocab() -> u32 {
    Rig::free().core.kv.executor().vocab()
}

#[test]
fn a_mask_without_tokens_of_the_vocabulary_fails_only_its_own_reply() {
    let vocab = rig_vocab();
    let outside = TokenMask::allow(vocab + 100, [TokenId(vocab + 50)]).expect("a mask");
    let mut rig = Rig::free();
    let agents = [rig.agent(masked(1, &Arc::new(outside))), rig.agent(speaker(2, 10))];
    let reply_ids = agents.map(|agent| rig.ask(agent, tokens("ab")));
    rig.run();
    rig.assert_all_ended();
    assert_eq!(rig.reply(reply_ids[0]).ends, [Err(ReplyError::NothingAllowed)]);
    assert!(rig.reply(reply_ids[1]).ends[0].is_ok());
}
