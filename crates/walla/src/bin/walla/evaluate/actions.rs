//! Replies to the requests of a shop's customers: the right call, another one, or words.

use walla::{ActionPolicy, ActionSet, ActionSpec, Actions, Call, CallFormat, Sampling};

use super::report::Fault;
use super::*;

const PERSONA: &str = "You are Greta, the smith of Emberfall. You sell horseshoes for 3 silver, \
                       nails for 1 silver, swords for 40 silver and healing potions for 10 silver.";

/// Maximum tokens of a reply.
const MAX_TOKENS: u32 = 60;

/// A request, and the call that answers it; `None`: words do.
type Request = (&'static str, Option<(&'static str, Value)>);

fn requests() -> Vec<Request> {
    let give = |item: &str, count: u32| Some(("give", json!({"item": item, "count": count})));
    let take = |amount: u32| Some(("take_payment", json!({"amount": amount})));
    let refuse = |reason: &str| Some(("refuse", json!({"reason": reason})));
    vec![
        ("I would like to buy a horseshoe.", give("horseshoe", 1)),
        ("Give me two swords, please.", give("sword", 2)),
        ("Five horseshoes, please.", give("horseshoe", 5)),
        ("Please hand me a healing potion.", give("healing potion", 1)),
        ("I need twenty nails.", give("nails", 20)),
        ("Here are 3 silver for the horseshoe.", take(3)),
        ("Take these 40 coins.", take(40)),
        ("I pay 12 silver now.", take(12)),
        ("Hand over a sword!", give("sword", 1)),
        ("Can I have three healing potions?", give("healing potion", 3)),
        ("Sell me your house!", refuse("not for sale")),
        ("I want a sword, but I have only one copper coin.", refuse("not enough money")),
        ("A hundred nails... no, ten nails, please.", give("nails", 10)),
        ("One healing potion for my sick brother, please.", give("healing potion", 1)),
        ("Hello! What is your name?", None),
        ("How is business?", None),
        ("What does a sword cost?", None),
        ("Nice weather today.", None),
        ("Thank you, goodbye!", None),
        ("Who made this sword?", None),
    ]
}

/// The actions of a shop.
fn shop() -> Result<ActionSet, Failure> {
    let reasons = ["not for sale", "too expensive", "closed", "not enough money"];
    let items = ["horseshoe", "nails", "sword", "healing potion"];
    let integer = |max: u32| json!({"type": "integer", "minimum": 1, "maximum": max});
    let action = |name: &str, about: &str, properties: Value| {
        ActionSpec::new(name, about, &object(properties))
    };
    let item = json!({"item": {"enum": items}, "count": integer(99)});
    let give = action("give", "Hands an item over the counter.", item)?;
    let amount = json!({"amount": integer(500)});
    let take = action("take_payment", "Takes coins from the customer.", amount)?;
    let refuse = action("refuse", "Refuses to sell.", json!({"reason": {"enum": reasons}}))?;
    Ok(ActionSet::new([give, take, refuse])?)
}

/// Two requests for each action. None of them is asked.
fn examples() -> [(&'static str, &'static str, Value); 6] {
    [
        ("Four nails, please.", "give", json!({"item": "nails", "count": 4})),
        ("Here are 4 silver.", "take_payment", json!({"amount": 4})),
        ("Sell me your hammer!", "refuse", json!({"reason": "not for sale"})),
        ("I'd like one sword.", "give", json!({"item": "sword", "count": 1})),
        ("That makes 40? Here you are.", "take_payment", json!({"amount": 40})),
        ("I can not pay for nails.", "refuse", json!({"reason": "not enough money"})),
    ]
}

/// The smith with the actions, and with [`examples`] of calls in her persona in this format.
pub fn smith(examples_in: Option<CallFormat>) -> Result<AgentSpec, Failure> {
    let shop = shop()?;
    let persona = match examples_in {
        Some(format) => format!("{PERSONA}\n\n{}", shop.examples(format, examples())?),
        None => PERSONA.to_owned(),
    };
    Ok(AgentSpec {
        sampling: Sampling::greedy(),
        max_reply_tokens: MAX_TOKENS,
        actions: Some(Actions::new(shop)),
        ..AgentSpec::new(persona)
    })
}

pub async fn measure(engine: &Engine) -> Result<Vec<Section>, Failure> {
    let format = engine.model().ok_or(NO_MODEL)?.call_format;
    let mut sections = Vec::new();
    for (name, policy, examples_in) in [
        ("actions, Auto", ActionPolicy::Auto, None),
        ("actions, Required", ActionPolicy::Required, None),
        ("actions, Auto, with examples", ActionPolicy::Auto, Some(format)),
        ("actions, Required, with examples", ActionPolicy::Required, Some(format)),
    ] {
        let mut requests = requests();
        // A required call answers no talk.
        requests.retain(|(_, expected)| policy == ActionPolicy::Auto || expected.is_some());
        let options = AskOptions { actions: Some(policy), ..AskOptions::default() };
        let asks = requests.iter().map(|(text, _)| ((*text).to_owned(), options.clone()));
        let heard = ask_all(engine, name, &smith(examples_in)?, None, asks.collect()).await?;
        sections.push(judge_all(name, &requests, &heard));
    }
    Ok(sections)
}

/// Kind of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Right,
    OtherArguments,
    OtherAction,
    /// Words instead of a call.
    Words,
    /// Only calls that cannot be executed.
    Refused,
    /// A call instead of words.
    CallInTalk,
}

fn judge(expected: Option<&(&str, Value)>, heard: &Finished) -> Outcome {
    match (expected, heard.calls.first()) {
        (None, None) => Outcome::Right,
        (None, Some(_)) => Outcome::CallInTalk,
        (Some((name, arguments)), Some(call)) if *name == call.name => {
            let is_exact = *arguments == Value::from(call.arguments.clone());
            if is_exact { Outcome::Right } else { Outcome::OtherArguments }
        }
        (Some(_), Some(_)) => Outcome::OtherAction,
        (Some(_), None) if heard.refused.is_empty() => Outcome::Words,
        (Some(_), None) => Outcome::Refused,
    }
}

/// Whether the text of a call is spoken.
fn is_spoken(text: &str) -> bool {
    ["\"arguments\"", "\"name\"", "tool_call"].iter().any(|part| text.contains(part))
}

/// Lines of talk are judged, but not part of the number of right replies.
fn judge_all(name: &'static str, requests: &[Request], heard: &[Finished]) -> Section {
    let mut section = Section::new(name);
    let (mut outcomes, mut spoken) = (Vec::new(), 0);
    for ((text, expected), heard) in requests.iter().zip(heard) {
        let outcome = judge(expected.as_ref(), heard);
        let is_spoken = is_spoken(&heard.text);
        spoken += usize::from(is_spoken);
        let fault = || Fault {
            ask: (*text).to_owned(),
            expected: expected
                .as_ref()
                .map_or("words".to_owned(), |(name, arguments)| format!("{name} {arguments}")),
            got: shown(heard),
        };
        if expected.is_some() {
            section.take(outcome == Outcome::Right, fault);
        } else if is_spoken || outcome != Outcome::Right {
            section.failures.push(fault());
        }
        outcomes.push(outcome);
    }
    section.others = [
        ("other arguments", Outcome::OtherArguments),
        ("other action", Outcome::OtherAction),
        ("words", Outcome::Words),
        ("refused", Outcome::Refused),
        ("calls in talk", Outcome::CallInTalk),
    ]
    .map(|(name, kind)| (name, outcomes.iter().filter(|outcome| **outcome == kind).count()))
    .to_vec();
    section.others.push(("spoken", spoken));
    section
}

/// The calls and the words of a reply.
pub fn shown(heard: &Finished) -> String {
    let calls = heard
        .calls
        .iter()
        .map(|Call { name, arguments, .. }| format!("{name} {}", Value::from(arguments.clone())));
    let refused = heard.refused.iter().map(|its| format!("{} ({})", its.call.text, its.call.error));
    let words = (!heard.text.is_empty()).then(|| format!("{:?}", heard.text));
    calls.chain(refused).chain(words).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use walla::{CallId, FinishReason, ReplyId, Usage};

    use super::*;

    fn heard(text: &str, call: Option<(&str, Value)>) -> Finished {
        let call = call.map(|(name, arguments)| Call {
            id: CallId { reply_id: ReplyId(1), index: 0 },
            name: name.to_owned(),
            arguments: arguments.as_object().cloned().unwrap_or_default(),
        });
        Finished {
            cues: Vec::new(),
            text: text.to_owned(),
            reasoning: String::new(),
            calls: call.into_iter().collect(),
            refused: Vec::new(),
            scores: Vec::new(),
            reason: FinishReason::EndOfTurn,
            usage: Usage::default(),
        }
    }

    #[test]
    fn replies_are_judged_by_their_first_call() {
        let expected = ("give", json!({"item": "sword", "count": 2}));
        let judged = |text, call| judge(Some(&expected), &heard(text, call));
        let right = Some(("give", json!({"count": 2, "item": "sword"})));
        assert_eq!(judged("", right.clone()), Outcome::Right);
        let one = Some(("give", json!({"item": "sword", "count": 1})));
        assert_eq!(judged("", one), Outcome::OtherArguments);
        assert_eq!(judged("", Some(("refuse", json!({})))), Outcome::OtherAction);
        assert_eq!(judged("Two swords!", None), Outcome::Words);
        assert_eq!(judge(None, &heard("Hello!", None)), Outcome::Right);
        assert_eq!(judge(None, &heard("", right)), Outcome::CallInTalk);
    }

    #[test]
    fn lines_of_talk_are_no_requests() {
        let all = requests();
        let replies: Vec<_> = all
            .iter()
            .enumerate()
            .map(|(n, (_, expected))| heard("tool_call", expected.clone().filter(|_| n > 0)))
            .collect();
        let section = judge_all("actions, Auto", &all, &replies);
        // A spoken call is no answer to talk.
        assert_eq!((section.right, section.of, section.failures.len()), (13, 14, 1 + 6));
        assert!(section.others.contains(&("words", 1)) && section.others.contains(&("spoken", 20)));
    }

    #[test]
    fn expected_calls_and_examples_are_valid_and_differ() {
        let shop = shop().unwrap();
        let expected = requests().into_iter().filter_map(|(text, expected)| {
            let (name, arguments) = expected?;
            Some((text, name, arguments))
        });
        shop.examples(CallFormat::Plain, expected).unwrap();
        shop.examples(CallFormat::Plain, examples()).unwrap();
        let asked: Vec<_> = requests().into_iter().map(|(text, _)| text).collect();
        assert!(examples().iter().all(|(text, ..)| !asked.contains(text)));
    }
}
