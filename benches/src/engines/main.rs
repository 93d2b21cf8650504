//! Several engines in one app: frame times of a crowd on a local and a remote engine, of engines on
//! two devices, of 10,000 agents on a simulated server, and the time of a takeover.
//!
//! ```text
//! cargo run --release -p walla_benches --features remote --bin engines -- takeover
//! cargo run --release -p walla -- serve & cargo run --release -p walla_benches --features remote \
//!     --bin engines -- crowd --url http://127.0.0.1:8080/v1
//! cargo run --release -p walla_benches --features remote --bin engines -- simulate \
//!     --url http://127.0.0.1:8080/v1
//! ```

mod calibrate;
mod crowd;
mod server;
mod takeover;

use std::error::Error;
use std::path::PathBuf;

use bevy_walla::remote::{Dialect, RemoteOptions};
use clap::{Parser, Subcommand};
use serde_json::{Value, json};
use walla_benches::{machine, output};

use crate::crowd::{Group, Plan};
use crate::server::StubServer;

/// Measures several engines in one app.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
    /// Frames per second of the host.
    #[arg(long, global = true, default_value_t = 60)]
    frame_rate: u32,
    /// Duration of each measurement, in seconds, behind 5 seconds that do not count.
    #[arg(long, global = true, default_value_t = 30)]
    seconds: u32,
    /// The commit, if git is not available.
    #[arg(long, global = true)]
    commit: Option<String>,
    /// Output file for the numbers as JSON.
    #[arg(long, global = true)]
    output: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// A substitute takes over from a server that does not answer.
    Takeover {
        /// Asks of each part.
        #[arg(long, default_value_t = 40)]
        asks: usize,
    },
    /// Agents on a local engine and on a server, with and without the latter.
    Crowd {
        /// Address of the server, up to and including `/v1`.
        #[arg(long)]
        url: String,
        /// Agents on the local engine.
        #[arg(long, default_value_t = 12)]
        local: usize,
        /// Agents on the server.
        #[arg(long, default_value_t = 488)]
        remote: usize,
        /// Maximum number of requests at the same time.
        #[arg(long, default_value_t = 64)]
        requests: u32,
    },
    /// Agents on a server inside this program that answers with measured latencies.
    Simulate {
        /// A real server, up to and including `/v1`, whose latencies are measured first.
        #[arg(long)]
        url: String,
        /// Number of agents.
        #[arg(long, default_value_t = 10_000)]
        agents: usize,
        /// Maximum number of requests at the same time.
        #[arg(long, default_value_t = 512)]
        requests: u32,
    },
    /// The same number of agents on one engine, and on each of two engines.
    Devices {
        /// A GGUF file. Default: the demo model.
        #[arg(long)]
        model: Option<PathBuf>,
        /// Devices of the engines.
        #[arg(long, value_delimiter = ',', default_value = "cuda:0,cuda:1")]
        devices: Vec<String>,
        /// Agents on each engine.
        #[arg(long, default_value_t = 64)]
        agents: usize,
    },
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let (name, result) = match &args.what {
        What::Takeover { asks } => ("takeover", takeover::measure(*asks, args.frame_rate)?),
        What::Crowd { url, local, remote, requests } => {
            let mut options = RemoteOptions::new(url, "walla");
            options.dialect = Dialect::Walla;
            options.max_requests = *requests;
            let few = vec![Group::new("default", *local)];
            let all = vec![Group::new("default", *local), Group::new("cloud", *remote)];
            let rows = [Vec::new(), few, all].map(|groups| {
                let setup = vec![("cloud".to_owned(), options.clone().into())];
                run(&args, true, setup, groups, 0.0)
            });
            ("crowd", json!(collect(rows)?))
        }
        What::Simulate { url, agents, requests } => {
            let latencies = calibrate::measure(url)?;
            let server = StubServer::start(latencies.clone())?;
            let mut options = RemoteOptions::new(server.url(), "walla");
            options.dialect = Dialect::Walla;
            options.max_requests = *requests;
            options.max_asks = u32::MAX;
            let rows = [0, *agents].map(|agents| {
                let setup = vec![("cloud".to_owned(), options.clone().into())];
                run(&args, true, setup, vec![Group::new("cloud", agents)], 60.0)
            });
            ("simulate", json!({"rows": collect(rows)?, "latencies": latencies.json()}))
        }
        What::Devices { model, devices, agents } => {
            let engines = |devices: &[String]| -> Vec<_> {
                let setup = |(at, device): (usize, &String)| {
                    (format!("engine-{at}"), crowd::local(model.as_ref(), device))
                };
                devices.iter().enumerate().map(setup).collect()
            };
            let groups = |count: usize, agents: usize| -> Vec<_> {
                (0..count).map(|at| Group::new(format!("engine-{at}"), agents)).collect()
            };
            let mut rows = Vec::new();
            for count in [1, devices.len()] {
                for agents in [0, *agents] {
                    let groups = groups(count, agents);
                    rows.push(run(&args, false, engines(&devices[..count]), groups, 0.0)?);
                }
            }
            ("devices", json!(rows))
        }
    };
    println!("{result:#}");
    if let Some(path) = &args.output {
        let report = json!({
            "machine": machine::facts(args.commit.as_deref()),
            "what": name,
            "frame_rate": args.frame_rate,
            "seconds": args.seconds,
            "result": result,
        });
        output::replace(path, format!("{report:#}\n"))?;
    }
    Ok(())
}

fn collect<const N: usize>(
    rows: [Result<Value, Box<dyn Error>>; N],
) -> Result<Vec<Value>, Box<dyn Error>> {
    rows.into_iter().collect()
}

/// Runs one crowd. `has_default`: the demo model is the engine `default`.
fn run(
    args: &Args,
    has_default: bool,
    engines: Vec<(String, bevy_walla::engines::EngineSetup)>,
    groups: Vec<Group>,
    pause_seconds: f64,
) -> Result<Value, Box<dyn Error>> {
    let plan = Plan {
        has_default,
        engines,
        groups,
        pause_seconds,
        frame_rate: args.frame_rate,
        seconds: args.seconds,
    };
    let row = crowd::measure(plan)?;
    eprintln!("{row}");
    Ok(row)
}
