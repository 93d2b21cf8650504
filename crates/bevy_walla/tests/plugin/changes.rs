//! A change of any component of an agent reaches the engine in the same frame, for this agent
//! alone.

use crate::common::*;
use bevy_app::prelude::*;
use bevy_ecs::component::Mutable;
use bevy_ecs::prelude::*;
use bevy_walla::agent::{AgentContext, AgentReasoning, Constraint, ContextPolicy};
use bevy_walla::conversation::Speaker;
use bevy_walla::engine::{AgentId, Command};
use bevy_walla::prelude::*;

/// A change of one component, and the command that follows.
type Change = (fn(&mut EntityWorldMut), &'static str);

/// Changes a component in place.
fn edit<T: Component<Mutability = Mutable>>(agent: &mut EntityWorldMut, edit: impl Fn(&mut T)) {
    edit(&mut agent.get_mut::<T>().expect("an agent has all components"));
}

const CHANGES: [Change; 14] = [
    (|agent| edit::<Agent>(agent, |a| a.persona.push('!')), "ChangeAgent"),
    (|agent| edit::<AgentSampling>(agent, |a| *a = AgentSampling::greedy()), "ChangeAgent"),
    (|agent| edit::<AgentSeed>(agent, |a| a.0 += 1), "ChangeAgent"),
    (|agent| edit::<VoiceRate>(agent, |a| *a = VoiceRate::tokens_per_second(3.0)), "ChangeAgent"),
    (|agent| edit::<AgentPriority>(agent, |a| a.0 += 1), "ChangeAgent"),
    (|agent| edit::<LevelOfDetail>(agent, |a| a.0 += 1), "SetDetail"),
    (|agent| edit::<ReplyLimits>(agent, |a| a.max_tokens += 1), "ChangeAgent"),
    (|agent| edit::<AgentContext>(agent, |a| a.0 = ContextPolicy::Refuse), "ChangeAgent"),
    (|agent| edit::<AgentReasoning>(agent, |a| a.thinking = true), "ChangeAgent"),
    (|agent| edit::<Conversation>(agent, |talk| talk.push(Speaker::User, "x")), "AppendTurns"),
    (|agent| edit::<Conversation>(agent, Conversation::clear), "SetConversation"),
    (|agent| _ = agent.insert(AgentSeed(77)), "ChangeAgent"),
    (|agent| _ = agent.insert(AgentConstraint(Constraint::regex("[0-9]"))), "ChangeAgent"),
    (|agent| _ = agent.insert(Conversation::default()), "SetConversation"),
];

/// Moves its agents to a separate table.
#[derive(Component)]
struct Moved;

/// A query is not dense with it.
#[derive(Component)]
#[component(storage = "SparseSet")]
struct Hidden;

/// Three agents in one table and one in another; each change of each in turn.
fn changes_reach_the_engine(mut app: App, commands: impl Fn() -> Vec<Command>) {
    let agents = ["A", "B", "C", "D"].map(|persona| spawn(&mut app, persona));
    app.world_mut().entity_mut(agents[3]).insert(Moved);
    updates(&mut app, 2);
    let added = commands();
    assert_eq!(added.len(), agents.len(), "{added:?}");
    let ids = ["A", "B", "C", "D"].map(|persona| {
        let is_sent =
            |c: &&Command| matches!(c, Command::AddAgent { spec, .. } if spec.persona == persona);
        agent_of(added.iter().find(is_sent).expect("each agent is added"))
    });
    for (&entity, &id) in agents.iter().zip(&ids) {
        for (i, (change, expected)) in CHANGES.iter().enumerate() {
            let before = commands().len();
            change(&mut app.world_mut().entity_mut(entity));
            updates(&mut app, 1);
            let new = commands().split_off(before);
            let names: Vec<_> = new.iter().map(|c| (name_of(c), agent_of(c))).collect();
            assert_eq!(names, [((*expected).to_owned(), id)], "change {i}");
            updates(&mut app, 2);
            assert_eq!(commands().len(), before + 1, "change {i} is sent once");
        }
    }
    // A change together with a move to another table.
    let before = commands().len();
    app.world_mut().get_mut::<AgentSeed>(agents[0]).unwrap().0 = 5;
    app.world_mut().entity_mut(agents[0]).insert(Moved);
    app.world_mut().entity_mut(agents[3]).remove::<Moved>();
    updates(&mut app, 2);
    let new = commands().split_off(before);
    assert_eq!(new.iter().map(agent_of).collect::<Vec<_>>(), [ids[0]], "{new:?}");
}

fn name_of(command: &Command) -> String {
    let text = format!("{command:?}");
    text.split(' ').next().unwrap_or_default().to_owned()
}

fn agent_of(command: &Command) -> AgentId {
    match command {
        Command::AddAgent { agent, .. }
        | Command::ChangeAgent { agent, .. }
        | Command::SetDetail { agent, .. }
        | Command::SetConversation { agent, .. }
        | Command::AppendTurns { agent, .. } => *agent,
        other => panic!("unexpected: {other:?}"),
    }
}

#[test]
fn every_change_reaches_the_engine() {
    let engine = echo();
    changes_reach_the_engine(app(&engine), || engine.commands());
}

#[test]
fn every_change_reaches_the_engine_if_a_disabling_component_is_in_a_sparse_set() {
    let engine = echo();
    let mut app = app(&engine);
    app.world_mut().register_disabling_component::<Hidden>();
    changes_reach_the_engine(app, || engine.commands());
}
