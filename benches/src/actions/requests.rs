//! What a model does with the requests of a shop's customers: the right call, another one, or
//! words.

use std::error::Error;

use serde_json::{Value, json};
use walla_runtime::{
    ActionPolicy, Actions, AgentSpec, AskOptions, Call, CallError, Client, Command, Engine, Prompt,
    Speaker, Turn, UnmarkedCalls,
};
use walla_types::Sampling;

use super::host::{Heard, Host};
use super::schemas::{set, shop};

/// Agents that reply at the same time.
pub const AGENTS: usize = 4;

const PERSONA: &str = "You are Greta, the smith of Emberfall. You sell horseshoes for 3 silver, \
                       nails for 1 silver, swords for 40 silver and healing potions for 10 silver.";

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

/// Turns in front of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Examples {
    None,
    /// Calls and their results.
    Calls,
    /// Each result is followed by words.
    Words,
}

const WHEN: &str = " If the customer orders, pays or asks for what you do not sell, call a \
                    function. Otherwise answer with words.";

/// Texts that are added to the persona, and examples.
const PROMPTS: [(&str, &str, Examples); 5] = [
    ("persona only", "", Examples::None),
    ("when to act", WHEN, Examples::None),
    (
        "how to act",
        " To act, write a <tool_call> block with a JSON object and nothing else.",
        Examples::None,
    ),
    ("examples of calls", "", Examples::Calls),
    ("examples of calls and words", "", Examples::Words),
];

impl Examples {
    fn turns(self) -> Vec<Turn> {
        let call = |name: &str, arguments: Value| {
            let text = json!({"name": name, "arguments": arguments}).to_string();
            Turn::new(Speaker::Action, text)
        };
        let says = |text: &str| Turn::new(Speaker::Agent, text);
        let asks = |text: &str| Turn::new(Speaker::User, text);
        let result = |text: &str| Turn::new(Speaker::ActionResult, text);
        let mut turns = vec![asks("Good morning!"), says("Good morning! What do you need?")];
        turns.push(asks("Four nails, please."));
        turns.push(call("give", json!({"item": "nails", "count": 4})));
        turns.push(result("Four nails are on the counter."));
        if self == Self::Words {
            turns.push(says("Here are four nails. That is 4 silver."));
        }
        turns.push(asks("Here are 4 silver."));
        turns.push(call("take_payment", json!({"amount": 4})));
        turns.push(result("The money is in the box."));
        if self == Self::Words {
            turns.push(says("Thank you!"));
        }
        if self == Self::None { Vec::new() } else { turns }
    }
}

/// Counts of the replies.
#[derive(Debug, Default)]
struct Counts {
    /// Requests whose first call is the right one.
    right: u32,
    /// The right action with other arguments.
    other_arguments: u32,
    /// Another action.
    wrong: u32,
    /// No call, only words.
    words: u32,
    /// Calls without the markers of the format.
    unmarked: u32,
    /// Other refused calls.
    refused: u32,
    /// Replies to talk that have a call.
    talk_calls: u32,
    /// Replies whose speech has the text of a call.
    spoken: u32,
}

impl Counts {
    fn take(&mut self, expected: Option<&(&str, Value)>, heard: &Heard) {
        let is_unmarked = heard.refused.iter().any(|its| its.call.error == CallError::Unmarked);
        self.unmarked += u32::from(is_unmarked);
        self.refused += u32::from(!is_unmarked && !heard.refused.is_empty());
        self.spoken += u32::from(
            ["\"arguments\"", "\"name\"", "tool_call"].iter().any(|of| heard.text.contains(of)),
        );
        let call = heard.calls.first();
        match (expected, call) {
            (None, call) => self.talk_calls += u32::from(call.is_some()),
            (Some((name, arguments)), Some(Call { name: called, arguments: with, .. })) => {
                let is_right = name == called;
                let is_exact = is_right && *arguments == Value::from(with.clone());
                self.right += u32::from(is_exact);
                self.other_arguments += u32::from(is_right && !is_exact);
                self.wrong += u32::from(!is_right);
            }
            (Some(_), None) => self.words += u32::from(heard.refused.is_empty()),
        }
    }

    fn json(&self, model: &str, prompt: &str, policy: &str) -> Value {
        let Self { right, other_arguments, wrong, words, unmarked, refused, talk_calls, spoken } =
            self;
        json!({
            "model": model, "prompt": prompt, "policy": policy, "right": right,
            "other_arguments": other_arguments, "other_action": wrong, "words": words,
            "without_markers": unmarked, "refused": refused, "calls_in_talk": talk_calls,
            "spoken": spoken,
        })
    }
}

/// Asks all requests with each prompt. Each reply is the first of its conversation, behind the
/// examples, and greedy.
pub fn measure(
    engine: &Engine,
    client: Client,
    model: &str,
    shows: bool,
) -> Result<Vec<Value>, Box<dyn Error>> {
    let mut host = Host::new(engine, client)?;
    let requests = requests();
    let policies = [
        ("Auto, calls without markers refused", ActionPolicy::Auto, UnmarkedCalls::Refuse),
        ("Auto", ActionPolicy::Auto, UnmarkedCalls::Call),
        ("Required", ActionPolicy::Required, UnmarkedCalls::Call),
    ];
    let mut rows = Vec::new();
    println!(
        "| prompt | policy | right of 14 | other arguments | other action | words | refused without \
         markers | refused | calls in talk (of 6) | spoken |\n|---|---|---|---|---|---|---|---|---|---|"
    );
    for (prompt, text, examples) in PROMPTS {
        for (name, policy, unmarked) in policies {
            let mut agents = Vec::new();
            for _ in 0..AGENTS {
                let actions = Actions { policy, unmarked, ..Actions::new(set(&shop())?) };
                let sampling = Sampling::builder().temperature(0.0).build()?;
                let spec = AgentSpec {
                    sampling,
                    max_reply_tokens: 60,
                    actions: Some(actions),
                    ..AgentSpec::new(format!("{PERSONA}{text}"))
                };
                agents.push(host.add(spec)?);
            }
            let turns = examples.turns();
            let mut counts = Counts::default();
            let mut next = |host: &mut Host<'_>, place: usize, ask: u64| {
                let agent = agents[place];
                host.send(Command::SetConversation { agent, turns: turns.clone() })?;
                let prompt = Prompt::Chat(requests[ask as usize].0.into());
                host.ask((place, agent), ask, prompt, AskOptions::default())
            };
            let mut heard = |_: usize, reply: Heard| {
                let (text, expected) = &requests[reply.ask as usize];
                if shows {
                    println!("{text}: {:?} {:?} {:?}", reply.text, reply.calls, reply.refused);
                }
                counts.take(expected.as_ref(), &reply);
            };
            // A required call answers no talk.
            let asks = if policy == ActionPolicy::Required { 14 } else { requests.len() };
            host.serve(AGENTS, asks as u64, &mut next, &mut heard)?;
            for agent in agents {
                host.send(Command::RemoveAgent { agent })?;
            }
            let Counts {
                right,
                other_arguments,
                wrong,
                words,
                unmarked,
                refused,
                talk_calls,
                spoken,
            } = &counts;
            println!(
                "| {prompt} | {name} | {right} | {other_arguments} | {wrong} | {words} | {unmarked} | \
                 {refused} | {talk_calls} | {spoken} |"
            );
            rows.push(counts.json(model, prompt, name));
        }
    }
    Ok(rows)
}
