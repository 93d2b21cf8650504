//! Limits of a reply.

use super::*;

#[test]
fn a_reply_of_zero_tokens_ends_at_once_without_text() {
    for prompt in [Prompt::Chat("Hello".into()), Prompt::Raw("Hello".into()), tokens("Hello")] {
        let mut rig = Rig::free();
        let agent = rig.agent(speaker(1, 0));
        let reply_id = rig.ask(agent, prompt);
        rig.run();
        let heard = rig.reply(reply_id);
        assert_eq!((heard.started, heard.text.as_str(), heard.tokens), (1, "", 0));
        assert_eq!(heard.ends, [Ok(FinishReason::Length)]);
        assert!(heard.usage.prompt_tokens > 0 && heard.usage.reply_tokens == 0, "{heard:?}");
        assert_eq!(rig.core.stats().steps, 0);
    }
}
