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
fn a_reply_is_made_of_allowed_tokens_only_whatever_others_may_say() {
    assert!(stage_vocab() >= VOCAB);
    let mask = allowing([97, 98, 120, 255]);
    let alone = {
        let mut stage = Stage::free();
        let agent = stage.agent(masked(5, &mask));
        let generation = stage.ask(agent, tokens("hello"));
        stage.run();
        assert_eq!(stage.reply(generation).ends, [Ok(FinishReason::Length)]);
        said(&stage, agent, 5)
    };
    assert_eq!(alone.len(), 20);
    assert!(alone.iter().all(|token| mask.allows(*token)), "{alone:?}");
    assert!(alone.iter().any(|token| *token != alone[0]), "there is a choice: {alone:?}");

    // More masks than one step can hold, shared masks, and agents without a mask: every reply ends
    // and uses only its own mask.
    let options = EngineOptions { agents_max: 16, ..options() };
    let mut stage = Stage::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let masks: Vec<_> = (0..11).map(|i| allowing(i * 20..i * 20 + 7)).collect();
    let mut agents: Vec<_> = masks.iter().map(|mask| (masked(9, mask), Some(mask))).collect();
    agents.push((masked(9, &masks[0]), Some(&masks[0])));
    agents.push((speaker(9, 20), None));
    agents.push((masked(5, &mask), Some(&mask)));
    let agents: Vec<_> = agents.into_iter().map(|(spec, mask)| (stage.agent(spec), mask)).collect();
    for (agent, _) in &agents {
        stage.ask(*agent, tokens("hello"));
    }
    stage.run();
    stage.assert_all_ended();
    for (agent, mask) in &agents {
        let said = said(&stage, *agent, 5);
        assert!(mask.is_none_or(|mask| said.iter().all(|token| mask.allows(*token))), "{said:?}");
    }
    assert_eq!(said(&stage, agents[13].0, 5), alone, "company changes nothing");
    assert_eq!(said(&stage, agents[0].0, 5), said(&stage, agents[11].0, 5));
}

fn stage_vocab() -> u32 {
    Stage::free().core.sequences.executor.vocab()
}

#[test]
fn a_mask_that_allows_nothing_of_the_vocabulary_fails_its_own_reply_only() {
    let vocab = stage_vocab();
    let outside = TokenMask::allow(vocab + 100, [TokenId(vocab + 50)]).expect("a mask");
    let mut stage = Stage::free();
    let agents = [stage.agent(masked(1, &Arc::new(outside))), stage.agent(speaker(2, 10))];
    let generations = agents.map(|agent| stage.ask(agent, tokens("ab")));
    stage.run();
    stage.assert_all_ended();
    assert_eq!(stage.reply(generations[0]).ends, [Err(ReplyError::NothingAllowed)]);
    assert!(stage.reply(generations[1]).ends[0].is_ok());
}
