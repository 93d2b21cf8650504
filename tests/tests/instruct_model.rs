//! A published instruct model, Qwen2.5-Coder-0.5B-Instruct in Q4_K_M, as characters of a game.
//! `cargo xtask real-model` fetches the file and runs these tests; `WALLA_INSTRUCT_MODEL` names
//! another file.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use walla::{
    ActionPolicy, ActionSet, ActionSpec, Actions, AgentSpec, AskOptions, Constraint, Engine,
    EngineOptions, Prompt, Sampling,
};
use walla_runtime::{AgentId, Client, Command, Engine as Runtime, EngineState, Pacing, ReplyEvent};

fn path() -> PathBuf {
    let fetched = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../target/walla_models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    );
    std::env::var_os("WALLA_INSTRUCT_MODEL")
        .map_or_else(|| Path::new(fetched).into(), PathBuf::from)
}

fn spec(persona: &str, max_reply_tokens: u32) -> AgentSpec {
    AgentSpec { sampling: Sampling::greedy(), max_reply_tokens, ..AgentSpec::new(persona) }
}

#[tokio::test]
#[ignore = "needs a downloaded model: cargo xtask real-model"]
async fn it_answers_acts_and_keeps_to_a_schema() -> Result<(), Box<dyn Error>> {
    let engine =
        Engine::start(EngineOptions { threads: Some(2), ..EngineOptions::model(path()) }).await?;
    let tutor = engine.agent_with(spec("You answer with a number.", 16));
    let sum = tutor.ask("What is 2 + 3?").finish().await?;
    assert!(sum.text.contains('5'), "{sum:?}");

    let schema = json!({
        "type": "object",
        "properties": {"kind": {"enum": ["hunt", "escort"]}, "reward": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["kind", "reward"],
        "additionalProperties": false
    });
    let constraint = Some(Constraint::json_schema(schema.to_string()));
    let elder = engine.agent_with(spec("You are the elder of a village and give quests.", 60));
    let options = AskOptions { constraint, ..AskOptions::default() };
    let quest = elder.ask_with("A quest, please.", options).finish();
    let quest = quest.await?.text;
    assert!(jsonschema::is_valid(&schema, &serde_json::from_str::<Value>(&quest)?), "{quest}");

    let item = json!({
        "type": "object",
        "properties": {"item": {"enum": ["nails", "sword"]}},
        "required": ["item"],
        "additionalProperties": false
    });
    let give = ActionSpec::new("give", "Hands an item over the counter.", &item)?;
    let actions = Actions::new(ActionSet::new([give])?);
    let actions = Actions { policy: ActionPolicy::Required, max_calls: 1, ..actions };
    let smith = AgentSpec { actions: Some(actions), ..spec("You are a smith.", 60) };
    let sale = engine.agent_with(smith).ask("I buy the nails.").finish().await?;
    let calls: Vec<_> = sale.calls.iter().map(|call| json!(call.arguments)).collect();
    assert_eq!(calls, [json!({"item": "nails"})], "{sale:?}");
    Ok(())
}

/// A game at 60 Hz with the default budget, which is shorter than the model's smallest step.
struct Game {
    engine: Runtime,
    client: Client,
}

impl Game {
    fn start() -> Result<Self, Box<dyn Error>> {
        let options = EngineOptions {
            device: "cpu".into(),
            threads: Some(1),
            ..EngineOptions::new(walla_runtime::ModelSource::Path(path()))
        };
        let engine = Runtime::start(options)?;
        while matches!(engine.state(), EngineState::Loading { .. }) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let client = engine.client(Pacing::default())?;
        Ok(Self { engine, client })
    }

    fn agents(&self, count: usize) -> Vec<AgentId> {
        let agent = |number: usize| {
            let agent = self.client.new_agent();
            let persona = format!("Number {number}: you are a villager. You answer briefly.");
            let spec = Box::new(spec(&persona, 6));
            assert!(self.client.try_send(Command::AddAgent { agent, spec }).is_ok());
            agent
        };
        (0..count).map(agent).collect()
    }

    /// Asks at once, and counts steps until all replies have ended.
    fn ask(&self, agents: &[AgentId]) -> u64 {
        let before = self.engine.stats().steps;
        for &agent in agents {
            let prompt = Prompt::Chat("What do you know about the mill?".into());
            let ask = Command::ask(agent, self.client.new_reply_id(), prompt);
            assert!(self.client.try_send(ask).is_ok());
        }
        let (mut ends, start) = (0, Instant::now());
        while ends < agents.len() {
            assert!(start.elapsed() < Duration::from_secs(600), "{:?}", self.engine.stats());
            self.client.frame();
            std::thread::sleep(Duration::from_millis(16));
            while let Some(event) = self.client.try_recv() {
                ends += usize::from(matches!(event.what, ReplyEvent::Finished { .. }));
                assert!(!matches!(event.what, ReplyEvent::Failed(_)), "{event:?}");
            }
        }
        self.engine.stats().steps - before
    }
}

/// Counts steps, because times depend on the machine: a step with one row and one with many cost
/// nearly the same.
#[test]
#[ignore = "needs a downloaded model: cargo xtask real-model"]
fn a_crowd_shares_its_steps_after_single_replies_too() -> Result<(), Box<dyn Error>> {
    let game = Game::start()?;
    let crowd = game.agents(24);
    let single = game.agents(1);
    let cold = game.ask(&crowd);
    (0..8).for_each(|_| _ = game.ask(&single));
    let after = game.ask(&crowd);
    let budget = game.engine.stats().budget;
    println!("steps: cold {cold}, after single replies {after}; {budget:?}");
    // Prompts are shorter in the second round.
    assert!(after as f64 <= 1.15 * cold as f64, "{after} steps, cold {cold}: {budget:?}");
    assert!(budget.smallest_step > Duration::from_millis(1), "{budget:?}");
    Ok(())
}
