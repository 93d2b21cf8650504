//! Calls of actions and their results in the async API, with the demo model.

use std::error::Error;

use serde::Deserialize;
use walla::schemars::{self, JsonSchema};
use walla::{
    ActionPolicy, ActionSet, ActionSpec, Actions, AgentSpec, AskOptions, Call, CallId, Constraint,
    Engine, EngineOptions, FinishReason, Finished, Prompt, ReplyError, ReplyEvent, ReplyId,
    ResultError, Sampling, Speaker, Turn,
};

/// Hands an item over the counter.
#[derive(Debug, Deserialize, JsonSchema)]
struct Give {
    item: String,
}

fn smith() -> Result<AgentSpec, Box<dyn Error>> {
    let give = ActionSpec::of::<Give>()?.with_choices("item", ["nails", "horseshoe"])?;
    let actions = Actions { max_calls: 1, ..Actions::new(ActionSet::new([give])?) };
    let persona = "You are Greta, the smith of Emberfall. A horseshoe costs 3 silver.";
    Ok(AgentSpec { actions: Some(actions), ..AgentSpec::new(persona) })
}

#[tokio::test]
async fn an_agent_acts_and_goes_on_speaking() -> Result<(), Box<dyn Error>> {
    let engine = Engine::start(EngineOptions::demo()).await?;
    let greta = engine.agent_with(smith()?);
    let required = AskOptions { actions: Some(ActionPolicy::Required), ..AskOptions::default() };
    let question = Prompt::Chat("A horseshoe, please.".into());
    let reply = greta.ask_with(question, required).finish().await?;
    assert_eq!((reply.calls.len(), reply.reason), (1, FinishReason::CallLimit), "{reply:?}");
    assert_eq!(reply.text, "", "the text of a call is not spoken");
    let give: Give = reply.calls[0].parse()?;
    assert!(["nails", "horseshoe"].contains(&give.item.as_str()), "{give:?}");
    let result = (reply.calls[0].id, "The horseshoe is sold.");
    let after = greta.answer_calls([result]).finish().await?;
    assert!(!after.text.is_empty() || !after.calls.is_empty(), "{after:?}");
    Ok(())
}

/// Two calls of one reply, with results in both orders: the same prompt, and so the same reply.
/// Results of other calls, repeated and missing ones are errors that keep nothing.
#[tokio::test]
async fn results_belong_to_their_calls() -> Result<(), Box<dyn Error>> {
    let engine = Engine::start(EngineOptions::demo()).await?;
    let mut spec = smith()?;
    let call = |index, item: &str| {
        let id = CallId { reply_id: ReplyId::unique(), index };
        Call::new(id, "give", &format!(r#"{{"item": "{item}"}}"#))
    };
    let [nails, shoe] = [call(0, "nails")?, call(1, "horseshoe")?];
    let shoe = Call { id: CallId { reply_id: nails.id.reply_id, ..shoe.id }, ..shoe };
    spec.turns =
        vec![Turn::new(Speaker::User, "Nails and a horseshoe."), nails.turn(), shoe.turn()];
    spec.sampling = Sampling::greedy();
    let greta = engine.agent_with(spec.clone());
    let other = engine.agent_with(spec.clone());
    let foreign = engine.agent_with(AgentSpec { turns: Vec::new(), ..spec });
    let results = [(nails.id, "The nails are sold."), (shoe.id, "No horseshoe is left.")];
    let failed = |end: Result<Finished, ReplyError>| match end {
        Err(ReplyError::Result(error)) => Ok(error),
        other => Err(format!("{other:?}")),
    };
    for (agent, given, expected) in [
        (&greta, vec![results[0]], ResultError::Missing(shoe.id)),
        (&greta, vec![results[1]], ResultError::Missing(nails.id)),
        (&greta, vec![results[0], results[1], results[0]], ResultError::Repeated(nails.id)),
        (&foreign, vec![results[0], results[1]], ResultError::Unknown(nails.id)),
    ] {
        assert_eq!(failed(agent.answer_calls(given).finish().await)?, expected);
    }
    let first = greta.answer_calls(results).finish().await?;
    let second = other.answer_calls([results[1], results[0]]).finish().await?;
    assert_eq!(first.text, second.text);
    assert_eq!(first.usage.prompt_tokens, second.usage.prompt_tokens);
    let repeated = greta.answer_calls(results).finish().await;
    assert_eq!(failed(repeated)?, ResultError::Repeated(nails.id));
    Ok(())
}

#[tokio::test]
async fn calls_are_events_of_the_stream() -> Result<(), Box<dyn Error>> {
    let engine = Engine::start(EngineOptions::demo()).await?;
    let mut spec = smith()?;
    spec.actions.iter_mut().for_each(|actions| actions.policy = ActionPolicy::Required);
    let greta = engine.agent_with(spec);
    let mut reply = greta.ask("Nails?");
    let (mut calls, mut ends) = (0, 0);
    while let Some(event) = reply.next_event().await {
        calls += usize::from(matches!(event, ReplyEvent::Call(_)));
        ends += usize::from(matches!(event, ReplyEvent::Finished { .. }));
    }
    assert_eq!((calls, ends, reply.calls().len()), (1, 1, 1));
    Ok(())
}

/// Turns of an ask precede it, and one ask can have a constraint of its own.
#[tokio::test]
async fn an_agent_answers_an_observation() -> Result<(), Box<dyn Error>> {
    let engine = Engine::start(EngineOptions::demo()).await?;
    let greta = engine.agent("You are Greta, the smith.");
    let enters = Turn::new(Speaker::Observation, "Odo enters the smithy.");
    let greeting = greta.ask_after(vec![enters], Prompt::Continue).finish().await?;
    assert!(greeting.usage.prompt_tokens > 10, "{greeting:?}");
    let choice = AskOptions::constraint(Constraint::choice(["yes", "no"]));
    let answer = greta.ask_with("Is it open?", choice);
    let answer = answer.finish().await?;
    assert!(["yes", "no"].contains(&answer.text.as_str()), "{answer:?}");
    Ok(())
}
