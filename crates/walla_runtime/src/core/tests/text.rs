//! What hosts are told of the tokens that a model draws.

use std::sync::Arc;

use walla_model::tokenizer::DecodeOptions;
use walla_types::TokenMask;

use super::*;

/// Draws some of these tokens, each as likely as the next.
fn drawing(seed: u64, tokens: &[u32], reply_tokens_max: u32) -> AgentSpec {
    let mask = TokenMask::allow(320, tokens.iter().copied().map(TokenId)).expect("a mask");
    let spec = speaker(seed, reply_tokens_max);
    let sampling = spec.sampling.to_builder().temperature(100.0).allowed_tokens(Arc::new(mask));
    AgentSpec { sampling: sampling.build().expect("valid"), ..spec }
}

fn control_token(stage: &Stage, text: &str) -> TokenId {
    stage.core.text.tokenizer.special_token(text).expect("the model has it")
}

#[test]
fn control_tokens_that_a_model_draws_are_heard_by_nobody() {
    let options = DecodeOptions { control_text: false, strip_space_prefix: false };
    let mut mixed = 0;
    for seed in 0..4 {
        let mut stage = Stage::free();
        let marker = control_token(&stage, "<|im_start|>");
        // Letters, halves of a character and a marker that does not end the turn.
        let agent = stage.agent(drawing(seed, &[marker.0, 97, 0xC3, 0xA9], 30));
        let generation = stage.ask(agent, tokens("ab"));
        stage.run();
        let drawn = said(&stage, agent, 2);
        let heard = stage.reply(generation);
        let decoded = stage.core.text.tokenizer.decode_with(&drawn, options);
        assert_eq!(Ok(&heard.text), decoded.as_ref(), "seed {seed}");
        assert_eq!((drawn.len(), heard.usage.reply_tokens), (30, 30));
        let silent = drawn.iter().rev().take_while(|token| **token == marker).count();
        assert_eq!(heard.tokens as usize, 30 - silent, "seed {seed}");
        mixed += drawn.iter().filter(|token| **token == marker).count();
    }
    assert!((10..110).contains(&mixed), "{mixed} markers of 120 tokens");
}
