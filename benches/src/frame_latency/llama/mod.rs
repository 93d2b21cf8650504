//! llama.cpp's server in parallel to the game: found at run time, never a dependency.
//!
//! The server runs as a separate process with a slot for each agent. One thread per agent sends
//! requests and reads the stream of tokens; the frame only drains a queue. A game would use it
//! today in this way.

mod http;

use std::error::Error;
use std::fs::File;
use std::io::BufRead;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use serde_json::{Value, json};

use crate::args::Arguments;
use crate::cell::Cell;
use crate::talk;
use crate::voices::Voices;

/// Timeout of the server's load.
const MAX_LOAD: Duration = Duration::from_secs(180);

/// Output of the server, in the folder of the results.
const LOG: &str = "llama-server.log";

/// Capacity of the queue of events for the frame.
const QUEUE: usize = 65_536;

/// A running server and its client threads.
pub struct Llama {
    server: Child,
    is_over: Arc<AtomicBool>,
}

#[derive(Clone, Debug)]
enum Said {
    Asked(Instant),
    Token,
    /// With the error, if it failed.
    Ended(Option<String>),
}

#[derive(Resource)]
struct Ears(Mutex<Receiver<(usize, Said)>>);

impl Llama {
    /// Starts the server and the agents' threads, and adds the systems to `app`. `None` without a
    /// server or without a model file for it.
    pub fn start(
        arguments: &Arguments,
        cell: &Cell,
        app: &mut App,
    ) -> Result<Option<Self>, Box<dyn Error>> {
        let (Some(program), Some(model)) = (&arguments.llama_server, &arguments.model) else {
            return Ok(None);
        };
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let context = arguments.context as usize * cell.agents.max(1);
        let layers = if cell.device.starts_with("cuda") { "999" } else { "0" };
        let mut command = Command::new(program);
        command
            .arg("-m")
            .arg(model)
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .args(["-np", &cell.agents.to_string(), "-c", &context.to_string()])
            .args(["-ngl", layers, "--no-webui"]);
        if let Some(threads) = arguments.threads {
            command.args(["-t", &threads.to_string(), "-tb", &threads.to_string()]);
        }
        command.args(arguments.llama_flags.split_whitespace());
        let log = arguments.out.join(LOG);
        let log = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let server = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let mut llama = Self { server, is_over: Arc::new(AtomicBool::new(false)) };
        llama.wait_until_ready(port)?;
        let (sender, receiver) = sync_channel(QUEUE);
        for place in 0..cell.agents {
            let speaker = Speaker {
                place,
                port,
                reply_tokens: arguments.reply_tokens,
                said: sender.clone(),
                is_over: Arc::clone(&llama.is_over),
            };
            std::thread::Builder::new().spawn(move || speaker.talk())?;
        }
        app.insert_resource(Ears(Mutex::new(receiver))).add_systems(PreUpdate, hear);
        Ok(Some(llama))
    }

    fn wait_until_ready(&mut self, port: u16) -> Result<(), Box<dyn Error>> {
        let start = Instant::now();
        while start.elapsed() < MAX_LOAD {
            if let Some(status) = self.server.try_wait()? {
                return Err(format!("llama.cpp's server ended: {status}; see {LOG}").into());
            }
            if http::get(port, "/health").is_ok_and(|status| status == 200) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(format!("llama.cpp's server did not get ready; see {LOG}").into())
    }
}

impl Drop for Llama {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let _gone_already = self.server.kill();
        let _status = self.server.wait();
    }
}

/// One agent's thread.
struct Speaker {
    place: usize,
    port: u16,
    reply_tokens: u32,
    said: SyncSender<(usize, Said)>,
    is_over: Arc<AtomicBool>,
}

impl Speaker {
    fn talk(&self) {
        for turn in 0.. {
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            self.tell(Said::Asked(Instant::now()));
            let error = self.reply(turn).err().map(|error| error.to_string());
            let failed = error.is_some();
            self.tell(Said::Ended(error));
            if failed {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }

    fn reply(&self, turn: usize) -> Result<(), Box<dyn Error>> {
        let (persona, question) = (talk::persona(self.place), talk::question(self.place + turn));
        let body = json!({
            "prompt": format!("{persona}\n\nQuestion: {question}\nAnswer:"),
            "n_predict": self.reply_tokens,
            "stream": true,
            "ignore_eos": true,
            "cache_prompt": true,
            "id_slot": self.place,
            "temperature": 0.7,
            "top_k": 40,
            "top_p": 0.95,
            "min_p": 0.05,
        });
        let stream = http::post(self.port, "/completion", &body.to_string())?;
        for line in stream.lines() {
            let line = line?;
            let Some(event) = line.strip_prefix("data: ") else { continue };
            let Ok(event) = serde_json::from_str::<Value>(event) else { continue };
            if event["stop"].as_bool() == Some(true) {
                return Ok(());
            }
            self.tell(Said::Token);
        }
        Err("the stream ended early".into())
    }

    fn tell(&self, said: Said) {
        let _no_room_or_over = self.said.try_send((self.place, said));
    }
}

fn hear(ears: Res<Ears>, mut voices: ResMut<Voices>) {
    let Ok(ears) = ears.0.lock() else { return };
    let now = Instant::now();
    for (place, said) in ears.try_iter() {
        match said {
            Said::Asked(at) => voices.asked(place, at),
            Said::Token => voices.heard(place, 1, now),
            Said::Ended(error) => voices.ended(place, error),
        }
    }
}
