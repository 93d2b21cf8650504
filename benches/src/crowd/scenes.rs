//! Frames of the game, asks, and their measurements.

use std::collections::HashMap;
use std::error::Error;
use std::time::Instant;

use serde_json::{Value, json};
use walla_benches::game::{Game, Values};
use walla_runtime::{
    AgentId, AgentSpec, AskOptions, BudgetStats, Client, Command, Event, Prompt, ReplyEvent,
    ReplyId, Speaker, Turn, Usage,
};

/// Frames after which an ask counts as lost.
const MAX_FRAMES: usize = 60 * 180;

/// Frames between two asks of a conversation.
const PAUSE_FRAMES: usize = 30;

/// Header of the table.
pub const HEADER: &str = "\
| history | scene | asks | seconds | first token p50 / p99 / longest, ms \
| prompt tokens evaluated | reply tokens | steps | longest device time of a frame, ms \
| frames over / planned / of | error p90 | frame work p99 (added), ms |
|---|---|---|---|---|---|---|---|---|---|---|---|";

/// An ended reply.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    pub text: String,
    pub calls: usize,
    pub usage: Usage,
}

/// Results of a scene.
#[derive(Clone, Debug, Default)]
pub struct Row {
    scene: &'static str,
    seconds: f64,
    first_token: Values,
    /// Prompt tokens that were not in the cache.
    evaluated: u32,
    tokens: u32,
    steps: u64,
    budget: BudgetStats,
    /// Device time of the frames, in milliseconds.
    device: Values,
    /// Work of the game per frame, in milliseconds.
    work: Values,
}

impl Row {
    /// A line of the table, without its first column.
    pub fn line(&self, alone: &Values) -> String {
        let [p50, p99, max] =
            [50.0, 99.0, 100.0].map(|percent| self.first_token.percentile(percent));
        let work = self.work.percentile(99.0);
        format!(
            "{} | {} | {:.2} | {p50:.0} / {p99:.0} / {max:.0} | {} | {} | {} | {:.1} \
             | {} / {} / {} | {:.0} % | {work:.2} ({:+.2}) |",
            self.scene,
            self.first_token.len(),
            self.seconds,
            self.evaluated,
            self.tokens,
            self.steps,
            self.device.max(),
            self.budget.frames_over,
            self.budget.frames_overdrawn,
            self.budget.frames,
            100.0 * self.budget.error_p90,
            work - alone.percentile(99.0),
        )
    }

    /// The same for a file.
    pub fn json(&self, alone: &Values) -> Value {
        let rounded = |value: f64| (value * 1e3).round() / 1e3;
        let of = |values: &Values, percent| rounded(values.percentile(percent));
        json!({
            "scene": self.scene,
            "asks": self.first_token.len(),
            "seconds": rounded(self.seconds),
            "first_token_ms": {
                "p50": of(&self.first_token, 50.0), "p99": of(&self.first_token, 99.0),
                "max": of(&self.first_token, 100.0),
            },
            "evaluated_tokens": self.evaluated,
            "reply_tokens": self.tokens,
            "steps": self.steps,
            "device_ms_of_a_frame": { "p50": of(&self.device, 50.0), "max": of(&self.device, 100.0) },
            "frames": self.budget.frames,
            "frames_over": self.budget.frames_over,
            "frames_overdrawn": self.budget.frames_overdrawn,
            "trials": self.budget.trials,
            "smallest_step_ms": rounded(self.budget.smallest_step.as_secs_f64() * 1e3),
            "prediction_error": { "p50": self.budget.error_p50, "p90": self.budget.error_p90 },
            "frame_work_ms_p99": of(&self.work, 99.0),
            "frame_work_ms_p99_added": rounded(self.work.percentile(99.0) - alone.percentile(99.0)),
        })
    }
}

/// Plays scenes on one engine.
pub struct Scenes<'a> {
    game: &'a mut Game,
    client: &'a Client,
    open: HashMap<ReplyId, Heard>,
    ended: HashMap<ReplyId, Heard>,
    events: Vec<Event>,
    row: Row,
}

impl<'a> Scenes<'a> {
    pub fn new(game: &'a mut Game, client: &'a Client) -> Self {
        let (open, ended) = (HashMap::new(), HashMap::new());
        Self { game, client, open, ended, events: Vec::new(), row: Row::default() }
    }

    /// Plays one scene and measures it.
    pub fn scene(
        &mut self,
        scene: &'static str,
        play: impl FnOnce(&mut Self) -> Result<(), Box<dyn Error>>,
    ) -> Result<Row, Box<dyn Error>> {
        let before = self.client.engine().stats();
        self.row = Row { scene, ..Row::default() };
        let start = Instant::now();
        play(self)?;
        let mut row = std::mem::take(&mut self.row);
        row.seconds = start.elapsed().as_secs_f64();
        let after = self.client.engine().stats();
        row.steps = after.steps - before.steps;
        row.budget = BudgetStats {
            frames: after.budget.frames - before.budget.frames,
            frames_over: after.budget.frames_over - before.budget.frames_over,
            frames_overdrawn: after.budget.frames_overdrawn - before.budget.frames_overdrawn,
            trials: after.budget.trials - before.budget.trials,
            ..after.budget
        };
        Ok(row)
    }

    fn send(&self, command: Command) -> Result<(), Box<dyn Error>> {
        self.client.try_send(command).map_err(|_| "the command queue is full".into())
    }

    pub fn spawn(&mut self, spec: AgentSpec) -> Result<AgentId, Box<dyn Error>> {
        let agent = self.client.new_agent();
        self.send(Command::AddAgent { agent, spec: Box::new(spec) })?;
        self.frames(1)?;
        Ok(agent)
    }

    /// Waits until the agents are prepared, at most a minute.
    pub fn prepare(&mut self) -> Result<(), Box<dyn Error>> {
        for _ in 0..60 {
            let before = self.client.engine().stats().background_tokens;
            self.frames(60)?;
            if self.client.engine().stats().background_tokens == before {
                break;
            }
        }
        Ok(())
    }

    /// Asks agents in one frame and waits for the ends of their replies.
    pub fn ask(
        &mut self,
        asks: &[(AgentId, Prompt)],
        options: &AskOptions,
    ) -> Result<Vec<Heard>, Box<dyn Error>> {
        let mut asked = Vec::new();
        for (agent, prompt) in asks {
            let reply_id = self.client.new_reply_id();
            let (agent, prompt, options) = (*agent, prompt.clone(), options.clone());
            self.send(Command::Ask { agent, reply_id, prompt, options })?;
            self.open.insert(reply_id, Heard::default());
            asked.push(reply_id);
        }
        for frame in 0.. {
            self.frames(1)?;
            if self.open.is_empty() {
                break;
            }
            if frame > MAX_FRAMES {
                return Err(format!("{}: an ask has no end", self.row.scene).into());
            }
        }
        let mut heard = Vec::new();
        for reply_id in asked {
            let reply = self.ended.remove(&reply_id).ok_or("a reply failed")?;
            self.row.first_token.add(reply.usage.first_token_micros as f64 / 1e3);
            self.row.evaluated += reply.usage.prompt_tokens - reply.usage.cached_tokens;
            self.row.tokens += reply.usage.reply_tokens;
            heard.push(reply);
        }
        Ok(heard)
    }

    /// Asks one agent, and pauses as a player does.
    pub fn say(
        &mut self,
        agent: AgentId,
        text: &str,
        options: &AskOptions,
    ) -> Result<Heard, Box<dyn Error>> {
        let heard = self.ask(&[(agent, Prompt::Chat(text.into()))], options)?;
        self.frames(PAUSE_FRAMES)?;
        heard.into_iter().next().ok_or_else(|| "no reply".into())
    }

    /// Gives an agent the results of its calls, to which it replies.
    pub fn answer(
        &mut self,
        agent: AgentId,
        text: &str,
        calls: usize,
    ) -> Result<Heard, Box<dyn Error>> {
        let turn = |_| Turn::new(Speaker::ActionResult, text);
        self.send(Command::AppendTurns { agent, turns: (0..calls).map(turn).collect() })?;
        let heard = self.ask(&[(agent, Prompt::Continue)], &AskOptions::default())?;
        self.frames(PAUSE_FRAMES)?;
        heard.into_iter().next().ok_or_else(|| "no reply".into())
    }

    /// Plays frames of the game. As the plugin does, it receives events at the beginning of a frame
    /// and grants the engine's steps at the end.
    pub fn frames(&mut self, count: usize) -> Result<(), Box<dyn Error>> {
        for _ in 0..count {
            self.receive()?;
            self.row.work.add(self.game.work());
            self.client.frame();
            self.game.rest();
            let used = self.client.engine().stats().budget.used;
            self.row.device.add(used.as_secs_f64() * 1e3);
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), Box<dyn Error>> {
        let mut events = std::mem::take(&mut self.events);
        while self.client.try_recv_many(256, &mut events) > 0 {}
        for Event { reply_id, what, .. } in events.drain(..) {
            let Some(heard) = self.open.get_mut(&reply_id) else { continue };
            match what {
                ReplyEvent::Delta { text, .. } => heard.text.push_str(&text),
                ReplyEvent::Call(_) => heard.calls += 1,
                ReplyEvent::Finished { usage, .. } => {
                    heard.usage = usage;
                    if let Some(heard) = self.open.remove(&reply_id) {
                        self.ended.insert(reply_id, heard);
                    }
                }
                ReplyEvent::Failed(error) => return Err(error.to_string().into()),
                _ => {}
            }
        }
        self.events = events;
        Ok(())
    }
}
