//! Actions of agents: the component [`AgentActions`], the events of calls, and results.

use std::sync::Arc;
use std::time::Duration;

use bevy_ecs::component::Component;
use bevy_ecs::prelude::*;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};
use walla_runtime::ReplyId;

use crate::agent::setting_removed;

#[cfg(feature = "actions")]
pub use walla_runtime::{Action, schemars};
pub use walla_runtime::{
    ActionError, ActionPolicy, ActionSet, ActionSpec, Call, CallId, ResultError, UnmarkedCalls,
};

/// The actions that an agent can call, from its next reply on.
///
/// The model reads them in its prompt and calls them while it speaks. A call arrives as
/// [`AgentCalled`], and as [`ActionCall`](crate::ActionCall) if the action is a type that was added
/// to the app. Its text is never spoken. From its first token on (without its markers, from the
/// name of its action on), the text of a call is constrained to the schemas of the actions, so that
/// a call is valid.
///
/// A change of the actions or their choices changes the beginning of the agent's prompt. It is
/// evaluated again, in spare time or at the next ask. Choices that change in play can be
/// [unlisted](Self::unlisted_choices): a change of them costs nothing. An unusable action is not an
/// error here: the agent's asks fail with
/// [`ReplyError::Actions`](crate::reply::ReplyError::Actions).
///
/// # Examples
/// ```
/// # use bevy_ecs::prelude::*;
/// use bevy_walla::actions::schemars::{self, JsonSchema};
/// use bevy_walla::prelude::*;
/// use serde::Deserialize;
///
/// /// Hands an item over the counter.
/// #[derive(Deserialize, JsonSchema)]
/// struct Give { item: String }
///
/// fn setup(mut commands: Commands) {
///     commands.spawn((
///         Agent::persona("You are Greta, the smith of Emberfall."),
///         AgentActions::new().allow::<Give>().choices::<Give>("item", ["horseshoe", "nails"]),
///     ));
/// }
/// fn sell_out(mut smiths: Query<&mut AgentActions>) {
///     for mut actions in &mut smiths {
///         actions.set_choices::<Give>("item", ["nails"]);
///     }
/// }
/// ```
#[derive(Component, Clone, Debug, PartialEq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Component, Default, Clone, Debug, PartialEq)
)]
#[component(on_remove = setting_removed, summary_tick)]
pub struct AgentActions {
    specs: Vec<ActionSpec>,
    policy: ActionPolicy,
    max_calls: u32,
    max_rounds: u32,
    unmarked: UnmarkedCalls,
    result_wait: Duration,
    /// Choices of actions that were not added yet.
    early_choices: Vec<Choices>,
    faults: Vec<Fault>,
    /// Names of actions that are types of the game.
    typed: Vec<String>,
}

/// Legal values of an argument.
#[derive(Clone, Debug, PartialEq)]
struct Choices {
    action: String,
    argument: String,
    values: Vec<String>,
    is_listed: bool,
}

impl Choices {
    fn new(
        action: &str,
        argument: &str,
        values: impl IntoIterator<Item = impl Into<String>>,
        is_listed: bool,
    ) -> Self {
        let values = values.into_iter().map(Into::into).collect();
        Self { action: action.to_owned(), argument: argument.to_owned(), values, is_listed }
    }
}

/// A defect, which a correction of the same action and argument removes.
#[derive(Clone, Debug, PartialEq)]
struct Fault {
    action: String,
    /// `None`: of the action itself.
    argument: Option<String>,
    error: Arc<ActionError>,
}

impl Fault {
    fn is_of(&self, argument: &str) -> bool {
        self.argument.as_deref() == Some(argument)
    }
}

impl Default for AgentActions {
    fn default() -> Self {
        Self::new()
    }
}

impl AgentActions {
    /// Default of [`result_wait`](Self::result_wait): two seconds, so that an action that no game
    /// code answers does not silence the agent.
    pub const RESULT_WAIT: Duration = Duration::from_secs(2);

    /// No actions, policy [`ActionPolicy::Auto`], at most 4 calls in a reply.
    #[must_use]
    pub fn new() -> Self {
        let walla_runtime::Actions { policy, max_calls, max_rounds, unmarked, .. } =
            walla_runtime::Actions::new(ActionSet::default());
        let (specs, early_choices, faults, typed) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let result_wait = Self::RESULT_WAIT;
        Self {
            specs,
            policy,
            max_calls,
            max_rounds,
            unmarked,
            result_wait,
            early_choices,
            faults,
            typed,
        }
    }

    /// Adds an action of the game's own type.
    #[cfg(feature = "actions")]
    #[must_use]
    pub fn allow<T: Action>(mut self) -> Self {
        match ActionSpec::of::<T>() {
            Ok(spec) => {
                let name = spec.name().to_owned();
                self.add(spec);
                self.typed.push(name);
            }
            Err(error) => {
                let action = walla_runtime::action_name::<T>();
                self.remove(&action);
                self.faults.push(Fault { action, argument: None, error: Arc::new(error) });
            }
        }
        self
    }

    /// Sets the legal values of a text argument, or of the items of a list of texts. Without
    /// values the action cannot be called. Choices of an action that the agent does not have apply
    /// when it is added.
    #[cfg(feature = "actions")]
    #[must_use]
    pub fn choices<T: Action>(
        mut self,
        argument: &str,
        values: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.set_choices::<T>(argument, values);
        self
    }

    /// As [`choices`](Self::choices), of an agent that exists.
    ///
    /// A call has one of the choices, also if the player requests another thing: a model that
    /// calls an action cannot name a choice that was removed, and takes another. For things that
    /// can run out, keep the choice and report in the result that nothing is left.
    #[cfg(feature = "actions")]
    pub fn set_choices<T: Action>(
        &mut self,
        argument: &str,
        values: impl IntoIterator<Item = impl Into<String>>,
    ) {
        self.set_choices_of(&walla_runtime::action_name::<T>(), argument, values);
    }

    /// As [`choices`](Self::choices), but the prompt does not list the choices: the grammar of
    /// calls alone has them, and the prompt keeps the schema of the type, or the latest choices
    /// that it lists. So other unlisted choices apply from the next reply on without evaluating the
    /// prompt again, and a prompt is no longer with many of them.
    ///
    /// The model does not learn them from its actions. Name them in the persona, as turns of the
    /// [`Conversation`](crate::Conversation) or in notes, or list all choices that there can be
    /// before:
    ///
    /// ```
    /// # use bevy_walla::actions::schemars::{self, JsonSchema};
    /// # use bevy_walla::prelude::*;
    /// # #[derive(serde::Deserialize, JsonSchema)]
    /// # struct Give { item: String }
    /// let actions = AgentActions::new()
    ///     .allow::<Give>()
    ///     .choices::<Give>("item", ["horseshoe", "nails", "sword"])
    ///     .unlisted_choices::<Give>("item", ["nails"]); // in stock
    /// # assert!(actions.fault().is_none());
    /// ```
    ///
    /// A server has no other grammar, so it gets them with each ask.
    #[cfg(feature = "actions")]
    #[must_use]
    pub fn unlisted_choices<T: Action>(
        mut self,
        argument: &str,
        values: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.set_unlisted_choices::<T>(argument, values);
        self
    }

    /// As [`unlisted_choices`](Self::unlisted_choices), of an agent that exists.
    #[cfg(feature = "actions")]
    pub fn set_unlisted_choices<T: Action>(
        &mut self,
        argument: &str,
        values: impl IntoIterator<Item = impl Into<String>>,
    ) {
        self.set_unlisted_choices_of(&walla_runtime::action_name::<T>(), argument, values);
    }

    /// Removes an action.
    #[cfg(feature = "actions")]
    pub fn forbid<T: Action>(&mut self) {
        self.remove(&walla_runtime::action_name::<T>());
    }

    /// Adds an action, or replaces the one of the same name: for actions that are data, for
    /// instance of a mod.
    pub fn add(&mut self, spec: ActionSpec) {
        let name = spec.name().to_owned();
        let is_its = |choices: &mut Choices| choices.action == name;
        let early: Vec<_> = self.early_choices.extract_if(.., is_its).collect();
        self.remove(&name);
        self.specs.push(spec);
        for choices in early {
            self.choose(choices);
        }
    }

    /// Removes the action of this name, with its defects.
    pub fn remove(&mut self, name: &str) {
        self.specs.retain(|spec| spec.name() != name);
        self.early_choices.retain(|choices| choices.action != name);
        self.faults.retain(|fault| fault.action != name);
        self.typed.retain(|typed| typed != name);
    }

    /// Names of the actions that are types of the game.
    #[cfg(feature = "actions")]
    pub(crate) fn typed(&self) -> impl Iterator<Item = &str> {
        self.typed.iter().map(String::as_str)
    }

    /// Sets the legal values of a text argument of the action of this name, or of the items of a
    /// list of texts.
    pub fn set_choices_of(
        &mut self,
        name: &str,
        argument: &str,
        values: impl IntoIterator<Item = impl Into<String>>,
    ) {
        self.choose(Choices::new(name, argument, values, true));
    }

    /// As [`unlisted_choices`](Self::unlisted_choices), of the action of this name.
    pub fn set_unlisted_choices_of(
        &mut self,
        name: &str,
        argument: &str,
        values: impl IntoIterator<Item = impl Into<String>>,
    ) {
        self.choose(Choices::new(name, argument, values, false));
    }

    fn choose(&mut self, choices: Choices) {
        let Choices { action, argument, values, is_listed } = &choices;
        self.faults.retain(|fault| fault.action != *action || !fault.is_of(argument));
        let Some(spec) = self.specs.iter_mut().find(|spec| spec.name() == action) else {
            // Unlisted choices leave the list as it is.
            let is_other = |early: &Choices| {
                early.action != *action
                    || early.argument != *argument
                    || early.is_listed && !is_listed
            };
            self.early_choices.retain(is_other);
            return self.early_choices.push(choices);
        };
        let changed = match is_listed {
            true => spec.with_choices(argument, values),
            false => spec.with_unlisted_choices(argument, values),
        };
        match changed {
            Ok(changed) => *spec = changed,
            Err(error) => {
                let Choices { action, argument, .. } = choices;
                let (argument, error) = (Some(argument), Arc::new(error));
                self.faults.push(Fault { action, argument, error });
            }
        }
    }

    /// Sets when the agent may call its actions. [`Ask::with_policy`](crate::Ask::with_policy)
    /// replaces it for one ask.
    #[must_use]
    pub fn policy(self, policy: ActionPolicy) -> Self {
        Self { policy, ..self }
    }

    /// Sets the maximum number of calls in one reply. 0: the agent calls no action.
    #[must_use]
    pub fn max_calls(self, max_calls: u32) -> Self {
        Self { max_calls, ..self }
    }

    /// Sets the maximum number of consecutive replies to results that may call actions again;
    /// the next one has words. Small models often call again: 0 lets them speak about the first
    /// result. Default: 8.
    #[must_use]
    pub fn max_rounds(self, max_rounds: u32) -> Self {
        Self { max_rounds, ..self }
    }

    /// Sets the treatment of calls that the model writes without the markers of its format.
    /// Default: [`UnmarkedCalls::Call`].
    #[must_use]
    pub fn unmarked_calls(self, unmarked: UnmarkedCalls) -> Self {
        Self { unmarked, ..self }
    }

    /// Sets how long the agent waits, after the first [result](ActionResult) of a reply with
    /// several calls, for the results of the others. It continues when all calls have a result, or
    /// after this time; then the model sees that the others have none yet. Zero: each result lets
    /// it go on. Time is that of `Time<Virtual>`, if the app has it. Default:
    /// [`RESULT_WAIT`](Self::RESULT_WAIT).
    #[must_use]
    pub fn result_wait(self, result_wait: Duration) -> Self {
        Self { result_wait, ..self }
    }

    /// How long the agent waits for further results.
    #[must_use]
    pub fn current_wait(&self) -> Duration {
        self.result_wait
    }

    /// The actions.
    #[must_use]
    pub fn specs(&self) -> &[ActionSpec] {
        &self.specs
    }

    /// When the agent may call its actions.
    #[must_use]
    pub fn current_policy(&self) -> ActionPolicy {
        self.policy
    }

    /// The first defect of the actions. With a defect, the agent's asks fail. Correct choices, and
    /// adding the action again or removing it, remove the defect.
    #[must_use]
    pub fn fault(&self) -> Option<&ActionError> {
        self.faults.first().map(|fault| &*fault.error)
    }

    /// The actions as the engine receives them.
    pub(crate) fn for_engine(&self) -> walla_runtime::Actions {
        let Self { policy, max_calls, max_rounds, unmarked, .. } = *self;
        let (set, fault) = match ActionSet::new(self.specs.iter().cloned()) {
            Ok(set) => (set, self.faults.first().map(|fault| Arc::clone(&fault.error))),
            Err(error) => (ActionSet::default(), Some(Arc::new(error))),
        };
        let actions = walla_runtime::Actions::new(set);
        walla_runtime::Actions { policy, max_calls, max_rounds, unmarked, fault, ..actions }
    }
}

/// An agent called an action: a valid call, of any action. [`ActionCall`](crate::ActionCall) is the
/// same as a type of the game.
///
/// It is delivered once, between the text before and behind it. Answer it with
/// [`ActionCommands::action_result`] if the agent shall hear the outcome and go on speaking.
#[derive(Clone, Debug, PartialEq, EntityEvent, Message)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Event, Message, Clone, Debug, PartialEq)
)]
pub struct AgentCalled {
    /// The agent that acts.
    #[event_target]
    pub agent: Entity,
    /// The reply with the call.
    pub reply_id: ReplyId,
    /// The [`Ask::tag`](crate::Ask::tag) of the ask.
    pub tag: u64,
    /// The call.
    pub call: Arc<Call>,
}

/// A call of an agent with [`Simulation`](crate::agent::Simulation): nothing has happened, and
/// neither [`AgentCalled`] nor [`ActionCall`](crate::ActionCall) is triggered.
///
/// Answer it with [`ActionCommands::action_result`], as a real one, if the simulation continues.
#[derive(Clone, Debug, PartialEq, EntityEvent, Message)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Event, Message, Clone, Debug, PartialEq)
)]
pub struct SimulatedCall {
    /// The agent.
    #[event_target]
    pub agent: Entity,
    /// The reply with the call.
    pub reply_id: ReplyId,
    /// The [`Ask::tag`](crate::Ask::tag) of the ask.
    pub tag: u64,
    /// The call. [`Call::parse`] gives it as a type of the game.
    pub call: Arc<Call>,
}

/// A call that cannot be executed. Its text is not spoken.
///
/// Calls are constrained, so this is rare: the reply ended within the call, the policy is
/// [`ActionPolicy::Off`], or the game's type refused arguments that its schema allows.
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Event, Message, Clone, Debug, PartialEq)
)]
pub struct CallRefused {
    /// The agent.
    #[event_target]
    pub agent: Entity,
    /// The call.
    pub id: CallId,
    /// The [`Ask::tag`](crate::Ask::tag) of the ask.
    pub tag: u64,
    /// Text of the call, at most 1,024 bytes.
    pub text: String,
    /// Why it cannot be executed.
    pub reason: String,
}

/// The result of an action, written by the game: trigger it, or call
/// [`ActionCommands::action_result`].
///
/// The text becomes a turn of the [`Conversation`](crate::Conversation)
/// ([`Speaker::ActionResult`](crate::conversation::Speaker::ActionResult)) that belongs to its
/// call, in any order of several results. When the reply with the calls has ended and each of its
/// calls has a result, or after [`AgentActions::result_wait`], the agent continues to speak: an
/// [`Ask`](crate::Ask) of the kind [`Prompt::Continue`](crate::ask::Prompt::Continue) with the tag
/// of the ask that led to the call. Results of one frame lead to one reply. It may call actions
/// again, in at most eight consecutive replies to results without another new turn.
///
/// A result is refused ([`ResultRefused`]) if its call is not in the agent's conversation, because
/// another agent made it or it was removed (a rewind, another conversation), if the call has a
/// result, or if the reply with the call was cancelled before its end.
///
/// If the agent shall know the result without speaking, push the turn to its conversation instead
/// ([`Conversation::push_turn`](crate::Conversation::push_turn)).
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Message, Clone, Debug, PartialEq))]
pub struct ActionResult {
    /// The agent that acted.
    #[event_target]
    pub agent: Entity,
    /// The call.
    pub id: CallId,
    /// The outcome, in words for the model: "The horseshoe is sold.". May contain text of players:
    /// it never becomes a control token.
    pub text: String,
}

/// A result that was not taken: the agent does not know it and does not answer it.
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Message, Clone, Debug, PartialEq))]
pub struct ResultRefused {
    /// The agent of the result.
    #[event_target]
    pub agent: Entity,
    /// The call of the result.
    pub id: CallId,
    /// The text of the result.
    pub text: String,
    /// Why it was not taken.
    pub reason: ResultError,
}

/// [`ActionResult`] as a method of [`EntityCommands`].
pub trait ActionCommands {
    /// Triggers [`ActionResult`] for this agent: it hears the result and continues to speak.
    fn action_result(&mut self, id: CallId, text: impl Into<String>) -> &mut Self;
}

impl ActionCommands for EntityCommands<'_> {
    fn action_result(&mut self, id: CallId, text: impl Into<String>) -> &mut Self {
        let (agent, text) = (self.id(), text.into());
        self.commands().trigger(ActionResult { agent, id, text });
        self
    }
}
