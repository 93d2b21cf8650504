//! First replies: the cost of a constraint for a reply, and of other choices of an action.
//!
//! Each round of the replies loads the model again. All prompts are in the cache. A constraint that
//! forces the first tokens gives them before the prompt is evaluated.

use std::error::Error;
use std::time::Duration;

use serde_json::{Value, json};
use walla_runtime::{
    ActionPolicy, ActionSet, ActionSpec, Actions, AgentId, AgentSpec, AskOptions, Client, Command,
    Constraint, Engine, Prompt, Usage,
};
use walla_types::Sampling;

use super::host::Host;
use super::schemas::{schema, set, shop};

/// Names of the replies, in their order.
pub const REPLIES: [&str; 8] = [
    "no constraint",
    "first constraint",
    "same constraint, another agent",
    "another constraint",
    "the same again",
    "no call of actions",
    "first required call",
    "same actions, another agent",
];

/// Names of the asks behind other choices of an action, in their order.
pub const CHOICES: [&str; 3] = ["same choices", "other listed choices", "other unlisted choices"];

/// Names of an action's choices in a prompt of some 1,500 tokens.
const CHOICES_COUNT: usize = 120;

/// A reply.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shot {
    pub usage: Usage,
    /// Time of the engine's masks meanwhile.
    pub mask_micros: f64,
    /// Processor time of the program meanwhile, in ticks of the system.
    pub processor_micros: Option<f64>,
}

/// Times of the program so far.
struct Start {
    masks: Duration,
    processor: Option<f64>,
}

/// Processor time of the program, in ticks of 10 ms. `None`: only Linux counts it.
fn processor_micros() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name in parentheses, fields 14 and 15 of the line.
    let mut fields = text.rsplit(')').next()?.split_ascii_whitespace().skip(11);
    let ticks: [f64; 2] = [fields.next()?.parse().ok()?, fields.next()?.parse().ok()?];
    Some((ticks[0] + ticks[1]) * 1e4)
}

fn now(engine: &Engine) -> Start {
    Start { masks: engine.stats().mask_time, processor: processor_micros() }
}

/// Asks, and waits for the end of the reply.
fn ask(
    (engine, host): (&Engine, &mut Host<'_>),
    agent: AgentId,
    options: AskOptions,
) -> Result<Shot, Box<dyn Error>> {
    let start = now(engine);
    let mut options = Some(options);
    let mut shot = Shot::default();
    let mut next = |host: &mut Host<'_>, place: usize, number: u64| {
        let prompt = Prompt::Chat("Do you have three horseshoes for me?".into());
        host.ask((place, agent), number, prompt, options.take().unwrap_or_default())
    };
    host.serve(1, 1, &mut next, &mut |_, heard| shot.usage = heard.usage)?;
    let end = now(engine);
    shot.mask_micros = (end.masks - start.masks).as_secs_f64() * 1e6;
    shot.processor_micros = end.processor.zip(start.processor).map(|(end, start)| end - start);
    Ok(shot)
}

fn spec(actions: Option<(ActionPolicy, ActionSet)>) -> Result<AgentSpec, Box<dyn Error>> {
    let actions =
        actions.map(|(policy, set)| Actions { policy, max_calls: 1, ..Actions::new(set) });
    Ok(AgentSpec {
        actions,
        max_reply_tokens: 12,
        sampling: Sampling::builder().temperature(0.0).build()?,
        ..AgentSpec::new("You are Greta, the smith of this town. You answer in one short sentence.")
    })
}

/// Waits until the engine is ready, then for the time `after`, and asks the [`REPLIES`].
pub fn replies(
    engine: &Engine,
    client: Client,
    after: Duration,
) -> Result<[Shot; REPLIES.len()], Box<dyn Error>> {
    let mut host = Host::new(engine, client)?;
    let acts = |policy| spec(Some((policy, set(&shop())?)));
    let specs = [
        spec(None)?,
        spec(None)?,
        spec(None)?,
        spec(None)?,
        spec(None)?,
        acts(ActionPolicy::Off)?,
        acts(ActionPolicy::Required)?,
        acts(ActionPolicy::Required)?,
    ];
    let agents = specs.map(|spec| host.add(spec));
    std::thread::sleep(after);
    let with = |number| AskOptions::constraint(Constraint::json_schema_value(&schema(number)));
    let mut shots = [Shot::default(); REPLIES.len()];
    for (at, agent) in agents.into_iter().enumerate() {
        let agent = agent?;
        let options = match at {
            1 | 2 => with(0),
            3 | 4 => with(4),
            _ => AskOptions::default(),
        };
        if matches!(at, 0 | 5) {
            // The cache gets the prompt, which the other agents share.
            let other = host.add(if at == 0 { spec(None)? } else { acts(ActionPolicy::Off)? })?;
            ask((engine, &mut host), other, AskOptions::default())?;
        }
        shots[at] = ask((engine, &mut host), agent, options)?;
    }
    Ok(shots)
}

/// A reply behind each kind of change of an action's choices.
pub fn choices(engine: &Engine, client: Client) -> Result<[Shot; CHOICES.len()], Box<dyn Error>> {
    let mut host = Host::new(engine, client)?;
    let text = json!({"type": "object", "properties": {"item": {"type": "string"}},
        "required": ["item"]});
    let give = ActionSpec::new("give", "Hands an item over the counter.", &text)?;
    let all: Vec<String> = (0..CHOICES_COUNT).map(|n| format!("item number {n}")).collect();
    let listed = give.with_choices("item", &all)?;
    let of = |action: ActionSpec| spec(Some((ActionPolicy::Auto, ActionSet::new([action])?)));
    let agent = host.add(of(listed.clone())?)?;
    ask((engine, &mut host), agent, AskOptions::default())?;
    let others = [listed.clone(), give.with_choices("item", &all[1..])?, {
        listed.with_choices("item", &all[1..])?.with_unlisted_choices("item", &all[2..])?
    }];
    let mut shots = [Shot::default(); CHOICES.len()];
    for (shot, action) in shots.iter_mut().zip(others) {
        let turns = Vec::new();
        host.send(Command::SetConversation { agent, turns })?;
        host.send(Command::ChangeAgent { agent, spec: Box::new(of(action)?) })?;
        *shot = ask((engine, &mut host), agent, AskOptions::default())?;
    }
    Ok(shots)
}

/// Median, least and most of some numbers.
pub fn spread(mut numbers: Vec<f64>) -> [f64; 3] {
    numbers.sort_by(f64::total_cmp);
    let at = |place: usize| numbers.get(place).copied().unwrap_or(f64::NAN);
    [at(numbers.len() / 2), at(0), at(numbers.len().saturating_sub(1))]
}

/// Prints the rows of all rounds, and returns them.
pub fn report<const N: usize>(
    names: [&str; N],
    rounds: &[[Shot; N]],
    settings: &Value,
) -> Vec<Value> {
    println!(
        "| reply | prompt | evaluated | first token, median (least – most) ms | masks ms | \
         processor ms |\n|---|---|---|---|---|---|"
    );
    let mut rows = Vec::new();
    for (at, name) in names.into_iter().enumerate() {
        let of = |number: &dyn Fn(&[Shot; N]) -> f64| spread(rounds.iter().map(number).collect());
        let first = |shot: &Shot| shot.usage.first_token_micros as f64 / 1e3;
        let [median, least, most] = of(&|round| first(&round[at]));
        let masks = of(&|round| round[at].mask_micros / 1e3);
        let processor = of(&|round| round[at].processor_micros.unwrap_or(f64::NAN) / 1e3);
        let usage = rounds.last().map_or_else(Usage::default, |round| round[at].usage);
        let evaluated = usage.prompt_tokens - usage.cached_tokens;
        println!(
            "| {name} | {} | {evaluated} | {median:.1} ({least:.1} – {most:.1}) | {:.1} | {:.0} |",
            usage.prompt_tokens, masks[0], processor[0],
        );
        let rounded = |all: [f64; 3]| all.map(|number| (number * 10.0).round() / 10.0);
        rows.push(json!({
            "settings": settings, "reply": name, "rounds": rounds.len(),
            "prompt_tokens": usage.prompt_tokens, "evaluated_tokens": evaluated,
            "first_token_ms": rounded([median, least, most]), "mask_ms": rounded(masks),
            "processor_ms": rounded(processor),
        }));
    }
    rows
}
