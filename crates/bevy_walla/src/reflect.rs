//! Registers the plugin's types by name: for inspectors, scenes and Bevy's remote protocol.

use bevy_app::App;

use crate::actions::{
    ActionResult, AgentActions, AgentCalled, CallRefused, ResultRefused, SimulatedCall,
};
use crate::agent::{
    Agent, AgentConstraint, AgentContext, AgentEngine, AgentPriority, AgentReasoning,
    AgentSampling, AgentSeed, LevelOfDetail, ReplyLimits, VoiceRate,
};
use crate::ask::{Ask, Cancel};
use crate::cache::CacheEnded;
use crate::conversation::Conversation;
use crate::cues::{AgentCues, ReplyCue};
use crate::engines::{WallaEngineFailed, WallaEngineReady};
use crate::fork::{ForkOf, Simulation};
use crate::reply::{
    ReplyDelta, ReplyFailed, ReplyFinished, ReplyReasoning, ReplyScores, ReplyStarted, ReplyToken,
    TurnsDropped,
};
use crate::sentence::ReplySentence;
use crate::settings::WallaSettings;
use crate::speech::Speech;
use crate::walla::{WallaFailed, WallaReady};

pub(crate) fn register_types(app: &mut App) {
    app.register_type::<Agent>()
        .register_type::<AgentSampling>()
        .register_type::<AgentSeed>()
        .register_type::<VoiceRate>()
        .register_type::<AgentPriority>()
        .register_type::<LevelOfDetail>()
        .register_type::<ReplyLimits>()
        .register_type::<AgentContext>()
        .register_type::<AgentReasoning>()
        .register_type::<AgentConstraint>()
        .register_type::<AgentEngine>()
        .register_type::<ForkOf>()
        .register_type::<Simulation>()
        .register_type::<AgentActions>()
        .register_type::<AgentCalled>()
        .register_type::<CallRefused>()
        .register_type::<SimulatedCall>()
        .register_type::<ActionResult>()
        .register_type::<ResultRefused>()
        .register_type::<Conversation>()
        .register_type::<Speech>()
        .register_type::<Ask>()
        .register_type::<walla_runtime::Prompt>()
        .register_type::<Cancel>()
        .register_type::<ReplyStarted>()
        .register_type::<ReplyDelta>()
        .register_type::<AgentCues>()
        .register_type::<ReplyCue>()
        .register_type::<ReplyReasoning>()
        .register_type::<ReplySentence>()
        .register_type::<ReplyToken>()
        .register_type::<ReplyScores>()
        .register_type::<TurnsDropped>()
        .register_type::<ReplyFinished>()
        .register_type::<ReplyFailed>()
        .register_type::<CacheEnded>()
        .register_type::<WallaReady>()
        .register_type::<WallaFailed>()
        .register_type::<WallaEngineReady>()
        .register_type::<WallaEngineFailed>()
        .register_type::<WallaSettings>();
}
