//! Options of examples that can use a server of the chat completions protocol.

use bevy_walla::remote::{ApiKey, Dialect, RemoteOptions};
use clap::Args;

/// A server, on the command line.
#[derive(Args, Clone, Debug)]
pub struct RemoteArgs {
    /// Use this server instead of a model here, for instance http://127.0.0.1:8080/v1; `--model` is
    /// the name of its model
    #[arg(long, value_name = "URL")]
    pub remote: Option<String>,
    /// Software of the server: open-ai, vllm, sglang, llama-server, dynamo, walla
    #[arg(long, value_name = "NAME", default_value = "open-ai", requires = "remote")]
    pub software: Dialect,
    /// Environment variable with the key of the server
    #[arg(long, value_name = "NAME", requires = "remote")]
    pub key_env: Option<String>,
}

impl RemoteArgs {
    /// Options of the engine, if a server is named. `model`: the name of its model.
    #[must_use]
    pub fn options(&self, model: Option<&str>) -> Option<RemoteOptions> {
        let mut options = RemoteOptions::new(self.remote.as_ref()?, model.unwrap_or("default"));
        options.key = self.key_env.as_deref().map(ApiKey::from_env);
        options.dialect = self.software;
        Some(options)
    }
}
