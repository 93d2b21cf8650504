//! The time in which a local substitute takes over from a server that does not answer.

use std::error::Error;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::agent::AgentEngine;
use bevy_walla::engines::{EngineSet, EngineSetup, HealthRules, WallaEngines};
use bevy_walla::prelude::*;
use bevy_walla::remote::RemoteOptions;
use serde_json::{Value, json};

/// The agents' limit for the first output of the server.
const DEADLINE: Duration = Duration::from_millis(250);

/// When each reply of a round had its first text.
#[derive(Resource, Default)]
struct Firsts(Vec<(Entity, Instant)>);

pub fn measure(asks: usize, frame_rate: u32) -> Result<Value, Box<dyn Error>> {
    // It accepts connections, in the queue of the system, and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/v1", silent.local_addr()?);
    let mut options = RemoteOptions::new(url, "silent");
    options.retries.max_retries = 0;
    // Each ask waits for the deadline.
    let health = HealthRules { max_failures: u32::MAX, ..HealthRules::default() };
    let engines = EngineSet::new("default", EngineSetup::default()).with("cloud", options);
    let plugin = WallaPlugin::engines(engines.health(health));
    let mut app = App::new();
    app.add_plugins(plugin).init_resource::<Firsts>().add_observer(
        |delta: On<ReplyDelta>, mut firsts: ResMut<Firsts>| {
            if firsts.0.iter().all(|(agent, _)| *agent != delta.agent) {
                firsts.0.push((delta.agent, Instant::now()));
            }
        },
    );
    let frame = Duration::from_secs(1) / frame_rate.max(1);
    wait(&mut app, frame, &|app| app.world().resource::<Walla>().is_ready())?;
    let mut parts = Vec::new();
    for agents in [1, 12] {
        parts.push(part(&mut app, agents, asks, frame)?);
    }
    Ok(json!({"deadline_millis": DEADLINE.as_millis() as u64, "parts": parts}))
}

/// Some agents ask at the same time, again and again.
fn part(
    app: &mut App,
    agents: usize,
    asks: usize,
    frame: Duration,
) -> Result<Value, Box<dyn Error>> {
    let spawn = |at| {
        (
            Agent::persona(format!("You are guest {at}.")),
            AgentEngine::named("cloud").or("default", DEADLINE),
            ReplyLimits::tokens(8),
        )
    };
    let agents: Vec<Entity> = (0..agents).map(|at| app.world_mut().spawn(spawn(at)).id()).collect();
    let (mut late_frames, mut firsts) = (Vec::new(), Vec::new());
    for _ in 0..asks {
        app.world_mut().resource_mut::<Firsts>().0.clear();
        let moved = |app: &App| {
            app.world().resource::<WallaEngines>().get("cloud").map_or(0, |engine| engine.moved)
        };
        let before = moved(app);
        let asked = Instant::now();
        for &agent in &agents {
            app.world_mut().trigger(Ask::new(agent, "Who are you?"));
        }
        // The ask begins when the next frame is submitted.
        app.update();
        let begun = Instant::now();
        let due = begun + DEADLINE;
        // Frames that began behind the deadline, up to the one that submits the asks again.
        let mut late = 0;
        while moved(app) < before + agents.len() as u64 {
            std::thread::sleep(frame);
            late += u32::from(Instant::now() >= due);
            app.update();
            if asked.elapsed() > Duration::from_secs(30) {
                return Err("no takeover".into());
            }
        }
        late_frames.push(late);
        let of_agents = agents.len();
        wait(app, frame / 4, &|app| {
            let is_silent =
                |agent: &Entity| app.world().get::<Speech>(*agent).is_some_and(Speech::is_silent);
            app.world().resource::<Firsts>().0.len() == of_agents && agents.iter().all(is_silent)
        })?;
        let first = |at: &Instant| at.saturating_duration_since(due).as_secs_f64() * 1e3;
        firsts.extend(app.world().resource::<Firsts>().0.iter().map(|(_, at)| first(at)));
    }
    for &agent in &agents {
        app.world_mut().despawn(agent);
    }
    app.update();
    firsts.sort_by(f64::total_cmp);
    let quantile = |q: f64| firsts.get((firsts.len() as f64 * q) as usize).copied();
    Ok(json!({
        "agents": agents.len(),
        "takeovers": firsts.len(),
        "frames_behind_deadline_max": late_frames.iter().max(),
        "first_token_behind_deadline_millis": {
            "p50": quantile(0.5),
            "p99": quantile(0.99),
            "max": firsts.last(),
        },
    }))
}

fn wait(app: &mut App, frame: Duration, done: &dyn Fn(&App) -> bool) -> Result<(), Box<dyn Error>> {
    let begin = Instant::now();
    while !done(app) {
        if begin.elapsed() > Duration::from_secs(60) {
            return Err("no end".into());
        }
        app.update();
        std::thread::sleep(frame);
    }
    Ok(())
}
