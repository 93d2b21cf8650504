"""The smaller kinds of facts: age, origin, likes, fears, pets, debts, losses, drinks, dreams, hours, workplace, topics."""

from __future__ import annotations

from . import words
from .facts import ACQUAINTANCE, QUEST, RELATION, RUMOUR, Kind, simple
from .grammar import Phrases, a_or_an
from .names import Maker

AGE = simple(
    "age",
    lambda maker: {"age": str(maker.rng.randint(8, 89))},
    """
        You are {age} years old.
        You are {age}.
        Your age is {age}.
        You turned {age} last winter.
    """,
    "Age: {age}\nage: {age} years",
    """
        How old are you?
        What is your age?
        May I ask your age?
        How many winters have you seen?
        How many years do you have?
        ~ You look young. How old are you?
        What's your age, if I may ask?
        When were you born?
        Your age?
        Are you old?
        Tell me your age.
        How old might you be?
        You look old. How old are you?
        You look so young. What's your age?
        You don't look old.
        How young are you?
        How old do you think you are?
        Tell me how old you are.
        Are you young?
        And how old are you?
        How many years old are you?
        Can I ask how old you are?
    """,
    """
        I am {age} years old.
        {age}[, if you must know|, and I feel every year|, last I counted|].
        {age} years[ now|].
        I'm {age}.
        I have seen {age} winters.
    """,
    ("age",),
    "",
    """
        I don't know my age[. Nobody ever counted|].
        I can't say. I never counted the years.
        I don't know, I stopped counting long ago.
        No idea. Old enough, I suppose.
    """,
)

ORIGIN = simple(
    "origin",
    lambda maker: {"origin": maker.place()},
    """
        You come from {origin}.
        You were born in {origin}.
        You grew up in {origin}.
        You are originally from {origin}.
        Your home town is {origin}.
        Your family comes from {origin}.
    """,
    "Origin: {origin}\nBorn in: {origin}\nHome town: {origin}\nFrom: {origin}",
    """
        Where were you born?
        Where did you grow up?
        Where are you from originally?
        Where is your family from?
        What is your home town?
        ~ In what town did you grow up?
        Are you from here?
        Have you always lived here?
        Where did you live before?
        Were you born here?
        Where do your people come from?
        ~ Which town were you born in?
        Where did you spend your childhood?
        In which town were you born?
        In which town did you grow up?
        Which town do you come from?
        Which town is your home town?
        Where was your home when you were young?
        Where are you really from?
        Where did your family live?
        In what town were you born?
        Did you grow up here?
        Where did you live as a child?
        Where did your family come from?
    """,
    """
        I was born in {origin}.
        I come from {origin}[, originally|].
        {origin} is where I grew up.
        I'm from {origin}[, but that was long ago|].
        My family comes from {origin}.
        {origin}. [A long way from here.|I still miss it.|I have not been back in years.|]
    """,
    ("origin",),
    """
        Where were you born?
        Where did you grow up?
        Were you born here?
        ~ Which town were you born in?
        Where did you spend your childhood?
        In which town were you born?
        In which town did you grow up?
        Where was your home when you were young?
        In what town were you born?
        Did you grow up here?
        Where did you live as a child?
    """,
    """
        I don't know where I was born.
        I don't know. I was too small to remember.
        I can't say. My mother never told me.
        I have no idea. I only know this place.
    """,
)

LIKE = simple(
    "like",
    lambda maker: {"like": maker.like()},
    """
        You love {like}.
        You like {like} [very much|more than anything|].
        You are very fond of {like}.
        Nothing makes you happier than {like}.
        You enjoy {like}.
        You can talk for hours about {like}.
        Your great joy is {like}.
    """,
    "Likes: {like}\nLoves: {like}\nFavourite thing: {like}",
    """
        What do you like?
        What do you enjoy?
        What makes you happy?
        What do you love most?
        What do you do for fun?
        ~ What is your favourite thing?
        What are you fond of?
        Is there something you love?
        What do you like to do?
        Do you have a hobby?
        What brings you joy?
        What do you like best?
        What is your favourite?
        What's your favourite thing in the world?
        What things do you like?
        Which thing do you love most?
        What do you love?
        What do you really enjoy?
        What makes you smile?
        Tell me what you like.
        What are your hobbies?
        What is it that you love?
        What do you enjoy most?
    """,
    """
        I love {like}.
        {Like}[, of course|, if you ask me|]. [Nothing better.|What else?|]
        Nothing makes me happier than {like}.
        I am fond of {like}.
        I like {like} more than anything.
        Give me {like} and I'm content.
    """,
    ("like",),
    "",
    """
        I don't know[ what to say|]. I never think about it.
        I couldn't say. There is little time for joy.
        I don't know. Nothing in particular.
        No idea. Work is all I do.
    """,
)

FEAR = simple(
    "fear",
    lambda maker: {"fear": maker.fear()},
    """
        You fear {fear}.
        You are afraid of {fear}.
        You are terrified of {fear}.
        Nothing scares you more than {fear}.
        You have always been scared of {fear}.
        You hate {fear}.
    """,
    "Fears: {fear}\nFear: {fear}\nAfraid of: {fear}",
    """
        What are you afraid of?
        What do you fear?
        What scares you?
        Are you afraid of anything?
        What frightens you?
        ~ Is there anything you fear?
        What is your greatest fear?
        Does anything scare you?
        What gives you nightmares?
        You look brave. Do you fear anything?
        Tell me your fear.
        What keeps you awake at night?
        Is there something you are afraid of?
        Is there anything you are afraid of?
        Is there anything that scares you?
        Do you fear something?
        Do you fear anything?
        What is your fear?
        What do you fear most?
        What makes you afraid?
        What are you scared of?
        Are you scared of anything?
        What frightens you most?
        Tell me what you fear.
    """,
    """
        I am afraid of {fear}.
        {Fear}. [Don't laugh.|Ugh.|Do not tell anyone.|I can't stand the thought.|]
        I fear {fear}[ more than death|].
        Nothing scares me like {fear}.
        It's {fear}. [They say everyone fears something.|]
        I have always been afraid of {fear}.
    """,
    ("fear",),
    "",
    """
        I don't know. Nothing that I can think of.
        I can't think of anything[, I don't know|].
        I couldn't say. Not much scares me.
        I don't know what I fear.
    """,
)

PET = simple(
    "pet",
    lambda maker: {"animal": maker.animal(), "pet": maker.first_name()},
    """
        You have a {animal} named {pet}.
        Your {animal} is called {pet}.
        You own a {animal} called {pet}.
        {pet} is your {animal}.
        You keep a {animal} named {pet}.
        Your {animal} {pet} goes everywhere with you.
    """,
    "Pet: {pet}, a {animal}\nPet: {animal} named {pet}\nAnimal: {animal} ({pet})",
    """
        Do you have [a pet|any pets|any animals]?
        What is your {animal} called?
        What is your {animal}'s name?
        Who is {pet}?
        Is that your {animal}?
        ~ That is a fine {animal}. What's it called?
        Do you keep any animals?
        Tell me about your {animal}.
        Do you own a {animal}?
        What is the name of your {animal}?
        Is {pet} your pet?
        I like your {animal}.
        That's a fine {animal}. What is its name?
        What's that {animal} called?
        What's it called, your {animal}?
        What a fine {animal}!
        What is the name of that {animal}?
        Tell me the name of your {animal}.
        Does your {animal} have a name?
        Is it your {animal}?
        How is your {animal}?
        Nice {animal}.
        Do you have a {animal}?
        What animals do you have?
        Who is that {animal}?
        What animals do you have?
        Do you have a {other_animal}?
        What is your pet called?
        What is the name of your pet?
        Is that your {other_animal}?
        Tell me the name of your {other_animal}.
        Does your {other_animal} have a name?
        Do you own any animals?
    """,
    """
        My {animal} is called {pet}.
        {pet} is my {animal}.
        I have a {animal} named {pet}.
        [Yes, |Ah, |]that's {pet}, my {animal}. [A good one.|Do not touch.|]
        I keep a {animal}. {pet} is the name.
    """,
    ("animal", "pet"),
    """
        Do you have [a pet|any pets|any animals]?
        What is your {other_animal} called?
        Do you keep any animals?
        Do you own a {other_animal}?
        What is your {other_animal}'s name?
        ~ What is the name of your {other_animal}?
        That's a fine {animal}. What is its name?
        What's that {animal} called?
        What's it called, your {animal}?
        What a fine {animal}!
        What is the name of that {animal}?
        Tell me the name of your {animal}.
        Does your {animal} have a name?
        Is it your {animal}?
        How is your {animal}?
        Nice {animal}.
        Do you have a {animal}?
        What animals do you have?
        Who is that {animal}?
        What animals do you have?
        Do you have a {other_animal}?
        What is your pet called?
        What is the name of your pet?
        Is that your {other_animal}?
        Tell me the name of your {other_animal}.
        Does your {other_animal} have a name?
        Do you own any animals?
    """,
    """
        I don't have any animals.
        I have no pets.
        I don't keep animals[, they cost too much|].
        No, I don't have a pet.
        I have no animals of my own.
    """,
)

DEBT = simple(
    "debt",
    lambda maker: {"debtor": maker.person(), "sum": maker.price(maker.currency())},
    """
        You owe {debtor} {sum}.
        You owe {sum} to {debtor}.
        You borrowed {sum} from {debtor}.
        You still have to pay {sum} to {debtor}.
    """,
    "Debt: {sum} to {debtor}\nOwes: {debtor}, {sum}",
    """
        Do you owe anyone money?
        Do you have any debts?
        Who do you owe money?
        How much do you owe?
        Do you owe {debtor} anything?
        ~ How much do you owe {debtor}?
        Are you in debt?
        Why do you need money?
        What do you owe {debtor}?
        Did you borrow money?
        Have you paid {debtor} yet?
        ~ Whom do you owe?
        To whom do you owe money?
        Whom do you owe money?
        Who do you owe?
        How much do you owe, and to whom?
        Do you owe somebody money?
        Do you have debts?
        What are your debts?
        Are there any debts?
        Do you owe anything to anyone?
        How big is your debt?
    """,
    """
        I owe {debtor} {sum}.
        I owe {sum} to {debtor}[, curse it|, sad to say|].
        {sum}, to {debtor}. [I'll pay it back.|Don't remind me.|It keeps me awake.|]
        I borrowed {sum} from {debtor}.
        {debtor} wants {sum} from me.
    """,
    ("debtor", "sum"),
    """
        Do you owe anyone money?
        Do you have any debts?
        Who do you owe money?
        How much do you owe?
        Are you in debt?
        ~ Whom do you owe?
        To whom do you owe money?
        Whom do you owe money?
        Who do you owe?
        How much do you owe, and to whom?
        Do you owe somebody money?
        Do you have debts?
        What are your debts?
        Are there any debts?
        Do you owe anything to anyone?
        How big is your debt?
    """,
    """
        I don't owe anybody anything.
        I have no debts.
        I don't have debts[, thank the stars|].
        No debts that I know of.
    """,
)

LOSS = simple(
    "loss",
    lambda maker: {"lost": maker.thing(), "lost_at": maker.spot()},
    """
        You lost your {lost} in the {lost_at}.
        You have lost your {lost} somewhere in the {lost_at}.
        Your {lost} was lost in the {lost_at}.
        You miss your {lost}, which you lost in the {lost_at}.
    """,
    "Lost: {lost} (in the {lost_at})\nLost: a {lost}, in the {lost_at}",
    """
        Have you lost something?
        Did you lose anything?
        What did you lose?
        Where did you lose your {lost}?
        Where is your {lost}?
        ~ Where did you last see your {lost}?
        What happened to your {lost}?
        You look as if you lost something.
        Are you missing anything?
        What are you missing?
        Are you looking for something?
        Did you lose a {lost}?
        When did you last see it?
        Where did you see your {lost} last?
        Where did you last see it?
        Where was your {lost} last?
        Where did you lose it?
        You lost something, didn't you?
        Have you lost anything?
        Have you lost your {lost}?
        Is something missing?
        What have you lost?
        I heard you lost something.
        Can I help you find something?
        I heard you lost a {lost}.
        Have you lost a {other_thing}?
        Did you lose a thing?
        Have you lost anything?
        Have you lost your {other_thing}?
        Where is your {other_thing}?
        Where did you last see your {other_thing}?
        Is something missing?
        Have you lost a ring or a coin?
    """,
    """
        I lost my {lost} in the {lost_at}.
        My {lost} is gone. I lost it in the {lost_at}.
        I lost it in the {lost_at}, my dear old {lost}.
        My {lost} must be somewhere in the {lost_at}.
        In the {lost_at} I lost my {lost}. [If you find it, bring it to me.|]
    """,
    ("lost", "lost_at"),
    """
        Have you lost something?
        Did you lose anything?
        What did you lose?
        Where did you lose your {other_thing}?
        What happened to your {other_thing}?
        ~ Did you lose a {other_thing}?
        When did you last see it?
        Where did you see your {lost} last?
        Where did you last see it?
        Where was your {lost} last?
        Where did you lose it?
        You lost something, didn't you?
        Have you lost anything?
        Have you lost your {lost}?
        Is something missing?
        What have you lost?
        I heard you lost something.
        Can I help you find something?
        I heard you lost a {lost}.
        Have you lost a {other_thing}?
        Did you lose a thing?
        Have you lost anything?
        Have you lost your {other_thing}?
        Where is your {other_thing}?
        Where did you last see your {other_thing}?
        Is something missing?
        Have you lost a ring or a coin?
    """,
    """
        I haven't lost anything.
        I have lost nothing that I know of.
        I don't have any such thing, so I can't have lost it.
        No, I haven't lost anything.
        Not that I know of. I have not lost a thing.
    """,
)

DRINK = simple(
    "drink",
    lambda maker: {"drink": maker.drink()},
    """
        Your favourite drink is {drink}.
        You only drink {drink}.
        You always drink {drink}.
        You like to drink {drink}.
    """,
    "Drink: {drink}\nFavourite drink: {drink}",
    """
        What are you drinking?
        What do you drink?
        What is your favourite drink?
        Can I buy you a drink?
        Let me buy you a drink.
        ~ What would you like to drink?
        What can I get you?
        Are you thirsty?
        What's your drink?
        What shall we drink?
        What do you like to drink?
        Drink with me. What will it be?
        What would you drink?
        Would you like a drink?
        What would you like?
        Would you like something to drink?
        What drink do you like?
        What drink would you like?
        What do you want to drink?
        Have a drink with me.
        The drinks are on me.
        Can I get you a drink?
        What's your favourite drink?
        I'll buy you a drink. What will it be?
        Do you want a drink?
        What do you usually drink?
    """,
    """
        {Drink}[, always|, please|, thank you|].
        I drink {drink}[ and nothing else|].
        Make it {drink}. [You are kind.|Cheers.|]
        {Drink} for me.
        My favourite is {drink}.
        I'd love some {drink}.
    """,
    ("drink",),
    """
        What is your favourite drink?
        What do you like to drink?
        What's your drink?
        What do you always drink?
        What do you drink?
        ~ Which drink do you like best?
        Which drink is your favourite?
        Which drink do you like?
        What drink do you like best?
        What do you like best to drink?
        Which is the best drink?
        What's your favourite drink?
        What do you drink most?
    """,
    """
        I don't know. Whatever is in the cup.
        I have no favourite[, anything will do|].
        I don't have a favourite drink.
        I couldn't say. Water, mostly.
    """,
)

DREAM = simple(
    "dream",
    lambda maker: {"dream": maker.dream()},
    """
        You dream to {dream}.
        Your dream is to {dream}.
        You want to {dream} one day.
        You hope to {dream} some day.
        Your secret wish is to {dream}.
        One day you want to {dream}.
    """,
    "Dream: {dream}\nWish: {dream}\nGoal: {dream}",
    """
        What is your dream?
        What do you dream of?
        What do you want from life?
        Do you have a dream?
        What do you wish for?
        ~ If you could do anything, what would it be?
        What would you do if you were rich?
        What do you hope for?
        What is your goal?
        What are your plans?
        What do you really want?
        Do you have any wishes?
        If you could have anything, what would it be?
        If you could do one thing, what would it be?
        If you could, what would you do?
        What would you do if you could do anything?
        What would it be, if you could wish for anything?
        What is your wish?
        What do you want to do one day?
        What do you want?
        Tell me your dream.
        What do you dream about?
        What are your dreams?
        What would you like to do one day?
        Is there something you wish for?
        What is your greatest wish?
        Do you have plans for the future?
    """,
    """
        I want to {dream} one day.
        My dream is to {dream}.
        One day I will {dream}. [You'll see.|Just wait.|]
        To {dream}. [Do not laugh.|Is that too much to ask?|]
        I have always wanted to {dream}.
        I hope to {dream} before I die.
    """,
    ("dream",),
    "",
    """
        I don't know. I never think that far ahead.
        I don't dream of anything. I have no time.
        I couldn't say. I take each day as it comes.
        I have no dreams worth telling.
    """,
)

HOURS = simple(
    "hours",
    lambda maker: {"opens": maker.pick(words.TIMES), "closes": maker.pick(words.TIMES)},
    """
        You are open from {opens} to {closes}.
        Your shop is open from {opens} to {closes}.
        You open at {opens} and close at {closes}.
        You work from {opens} until {closes}.
    """,
    "Hours: {opens} to {closes}\nOpen: {opens} to {closes}",
    """
        When are you open?
        When do you open?
        When do you close?
        What are your hours?
        How late are you open?
        ~ Until when are you open?
        When can I come back?
        Are you open tomorrow?
        At what time do you open?
        When does your day end?
        How long are you here today?
        ~ At what time do you close?
        Until when do you work?
        Until when can I come?
        Until what time are you open?
        How long are you open?
        When do you start?
        When are you here?
        At what time are you open?
        When do you close today?
        When will you be open?
        What time do you open?
        What time do you close?
        Are you still open?
    """,
    """
        We are open from {opens} to {closes}.
        From {opens} to {closes}[, every day|].
        I open at {opens} and close at {closes}.
        Come between {opens} and {closes}.
        I'm here from {opens} until {closes}.
    """,
    ("opens", "closes"),
    """
        When do you open?
        When do you close?
        What are your hours?
        ~ Until when are you open?
        At what time do you open?
        ~ At what time do you close?
        Until when do you work?
        Until what time are you open?
        What time do you open?
        What time do you close?
        When are you open?
        How long are you open?
    """,
    """
        I don't keep fixed hours.
        I don't know. I open when I wake up.
        I can't say. It changes every day.
        I have no fixed hours.
    """,
)

WORKPLACE = simple(
    "workplace",
    lambda maker: {"house": maker.inn_name() if maker.chance(0.6) else maker.building()},
    """
        You work at {house}.
        You can be found at {house}.
        You spend your days at {house}.
        Your place of work is {house}.
        You run {house}.
    """,
    "Workplace: {house}\nWorks at: {house}\nFound at: {house}",
    """
        Where do you work?
        Where can I find you?
        Where is your shop?
        What is this place called?
        Where do you spend your days?
        ~ Where will you be tomorrow?
        Where should I look for you?
        What is the name of this house?
        Where exactly do you work?
        Where can I visit you?
        What's this place?
        In which house do you work?
        Where will you be?
        Where will I find you tomorrow?
        Will you be here tomorrow?
        Where can you be found?
        Where are you tomorrow?
        Where can I meet you?
        Where do you work tomorrow?
        Where should I go to find you?
        Where is your work?
        In what house do you work?
        Where are you during the day?
        Where do I find you?
        What is the name of your shop?
        What is your shop called?
        Tell me where you work.
        What is this house called?
    """,
    """
        I work at {house}.
        You'll find me at {house}.
        At {house}. [Everybody knows it.|You can't miss it.|]
        {House} is where I work.
        Come to {house}, I'm there every day.
    """,
    ("house",),
    """
        What is your shop called?
        What is the name of your house?
        What is the name of your shop?
        Does your shop have a name?
        What do you call your house?
        ~ Which inn do you go to?
        Which inn do you like?
        To which inn do you go?
        What inn do you go to?
        Which inn should I go to?
        Does your house have a name?
        What's your shop's name?
        What is the name of the inn?
    """,
    """
        I don't have a name for it.
        It has no name that I know of.
        I don't know of any name for it.
        It has no name. People just come.
    """,
)



PASTS = Phrases("""
    fought {beasts} near {place}
    served the {official} of {place}
    stole a {thing} from the {official}
    found a {thing} in the {spot}
    worked as {a_trade} in {place}
    was {a_trade} in {place}
    loved {name} of {place}
    saved {name} from {beasts}
    got lost in the {spot} for a week
    won a {thing} at cards in {place}
    killed a {animal} with bare hands
    sailed to {place}
    walked from {place} to the sea
    lost everything in {place}
    danced with the {official} of {place}
    slept in {building} for a month
    met the {official} in the {spot}
    rode a {animal} to {place}
    was in prison in {place}
    burned down {building} of {place}
    sold a {thing} to {name}
    hid in the {spot} from {beasts}
""")


PAST = simple(
    "past",
    lambda maker: {"past": PASTS.pick(maker.rng, {"thing": maker.thing(), "place": maker.place(), "spot": maker.spot(), "name": maker.first_name(), "beasts": maker.pick(words.BEASTS), "official": maker.pick(words.OFFICIALS), "a_trade": a_or_an(maker.trade()[1]), "animal": maker.animal(), "building": maker.building()})},
    """
        You once {past}.
        Long ago you {past}.
        As a young person you {past}.
        Years ago you {past}.
        You {past} in your youth.
        Everybody knows that you once {past}.
    """,
    "Past: {past}\nPast: once {past}\nStory: {past}",
    """
        What is your story?
        Tell me about your past.
        Tell me a story.
        Tell me something about yourself.
        What have you done in your life?
        ~ Tell me a story about yourself.
        What did you do in the past?
        What did you do when you were young?
        Tell me a story from your life.
        Tell me something from your life.
        Have you ever done anything great?
        What is your greatest deed?
        Tell me of your youth.
        Have you seen much of the world?
        What do people tell about you?
        What happened in your life?
    """,
    """
        I once {past}.
        Long ago I {past}.
        They still tell how I {past}.
        When I was young, I {past}.
        Well, I {past} once. [That's my whole story.|Long ago.|You may not believe it.|]
        Years ago I {past}. [Good times.|I still dream of it.|]
    """,
    ("past",),
    """
        What is your greatest deed?
        Have you ever done anything great?
        What do people tell about you?
        What did you do in the past?
        Tell me of your youth.
    """,
    """
        I don't know what to tell. Nothing much ever happened.
        There is nothing to tell.
        I have nothing to tell, I'm afraid.
        Nothing worth telling.
        I can't think of anything.
    """,
)


def _company(maker: Maker) -> dict[str, str]:
    slots: dict[str, str] = {}
    for key in ("first", "second"):
        slots[f"{key}_name"] = maker.first_name()
        slots[f"{key}_trade"] = maker.trade()[1]
        slots[f"a_{key}_trade"] = a_or_an(slots[f"{key}_trade"])
    return slots


COMPANY = simple(
    "company",
    _company,
    """
        {first_name}, {a_first_trade}, and {second_name}, {a_second_trade}, are here too.
        Also here: {first_name} ({first_trade}) and {second_name} ({second_trade}).
        The other guests are {first_name}, {a_first_trade}, and {second_name}, {a_second_trade}.
        With you in the tavern sit {first_name}, the {first_trade}, and {second_name}, the {second_trade}.
        You sit with {first_name}, the {first_trade}, and {second_name}, the {second_trade}.
        You know {first_name}, {a_first_trade}, and {second_name}, {a_second_trade}.
    """,
    "Also here: {first_name} ({first_trade}), {second_name} ({second_trade})\nGuests: {first_name}, {a_first_trade}; {second_name}, {a_second_trade}",
    """
        Who else is here?
        Who are the others?
        Who else can I talk to?
        Who are the people in here?
        Who is here tonight?
        ~ Do you know the others here?
        Are you alone here?
        Who are these people?
        Whom do you know here?
        ~ Who is sitting over there?
        Tell me about the other guests.
        Who are your friends?
        Who is sitting there?
        Who is that over there?
        Who is over there?
        Who sits over there?
        Who is sitting with you?
        Who are those people?
        Who is in the tavern tonight?
        Who is there?
        Who sits with you?
        Who are they?
        Who is with you?
        Do you know anybody here?
        Do you know these people?
        Is anybody else here?
        Who else is there?
    """,
    """
        {first_name}, the {first_trade}, and {second_name}, the {second_trade}.
        There is {first_name}, {a_first_trade}, and there is {second_name}, {a_second_trade}.
        I know {first_name}, {a_first_trade}, and {second_name}, {a_second_trade}.
        That's {first_name}, the {first_trade}, and that's {second_name}, the {second_trade}.
        {first_name} and {second_name}. One is {a_first_trade}, the other {a_second_trade}.
    """,
    ("first_name", "second_name"),
    """
        Who else is here?
        Who are the others?
        Who is here tonight?
        Who are these people?
        ~ Do you know the others here?
        ~ Who is sitting over there?
        Who is sitting there?
        Who is that over there?
        Who is over there?
        Who sits over there?
        Who is sitting with you?
        Who are those people?
        Who is in the tavern tonight?
        Who is there?
        Who sits with you?
        Who are they?
        Who is with you?
        Do you know anybody here?
        Do you know these people?
        Is anybody else here?
        Who else is there?
    """,
    """
        I don't know the others.
        I don't know. I keep to myself.
        I have no idea who they are.
        Strangers, all of them. I don't know their names.
        I can't say. I don't know anybody here.
    """,
)

TOPIC_FRAMES = [
    (Phrases("{Subject} is closed until {day}.\n{Subject} stays shut until {day}."), ("day",), Phrases("Is {subject} open?\nWhen will {subject} open again?\nCan I visit {subject}?\nCan I go to {subject}?\nIs {subject} closed?\n~ When does {subject} open?\nWhen does {subject} open again?\nDoes {subject} open soon?\nWhen is {subject} open?\nUntil when is {subject} closed?\nWhy is {subject} closed?")),
    (Phrases("{Subject} opens at {time}.\n{Subject} is open from {time} on."), ("time",), Phrases("~ When does {subject} open?\nAt what time does {subject} open?\nIs {subject} open now?\nWhen can I visit {subject}?\nHow early does {subject} open?\n~ What time can I go to {subject}?\nWhat time can I visit {subject}?\nWhen can I go to {subject}?\nCan I go to {subject} now?\nWhat time does {subject} open?\nIs {subject} open?")),
    (Phrases("{Subject} was built by {name}.\n{name} built {subject}."), ("name",), Phrases("Who built {subject}?\nDo you know who built {subject}?\nWho made {subject}?\nBy whom was {subject} built?\nWhose work is {subject}?\n~ Was it you who built {subject}?\nWas {subject} built by you?\nDid you build {subject}?\nWas it built by you, {subject}?\nDo you know who made {subject}?\nWho was it that built {subject}?")),
    (Phrases("{Subject} lies {direction} of {place}.\nYou find {subject} {direction} of {place}."), ("direction", "place"), Phrases("Where is {subject}?\nHow do I get to {subject}?\nWhich way to {subject}?\nWhere can I find {subject}?\nI am looking for {subject}.\n~ Can you show me the way to {subject}?\nShow me the way to {subject}.\nCan you tell me the way to {subject}?\nCan you show me {subject}?\nWhat is the way to {subject}?\nDo you know the way to {subject}?\nI want to go to {subject}.")),
    (Phrases("{Subject} belongs to {name}.\n{name} owns {subject}."), ("name",), Phrases("Who owns {subject}?\nWhose is {subject}?\nTo whom does {subject} belong?\nWho does {subject} belong to?\nDo you know the owner of {subject}?\n~ Who is the owner of {subject}?")),
    (Phrases("{Subject} is guarded by {beasts}.\n{Beasts} guard {subject}."), ("beasts",), Phrases("Is {subject} safe?\nWho guards {subject}?\nIs {subject} guarded?\nIs it dangerous at {subject}?\nWhat lives at {subject}?\n~ Can I get into {subject}?\nCan I go into {subject}?\nCan I get to {subject} safely?\nHow can I get into {subject}?\nCan anyone get into {subject}?\nShould I go to {subject}?\nIs it safe at {subject}?")),
    (Phrases("The key to {subject} is in the {spot}.\nThe key of {subject} is hidden in the {spot}."), ("spot",), Phrases("Where is the key to {subject}?\nHow do I get into {subject}?\nDo you have the key to {subject}?\nHow can I open {subject}?\nWho has the key to {subject}?\n~ Can I get into {subject}?\nCan I open {subject}?\nHow can I get into {subject}?\nWhere is the key of {subject}?\nCan you let me into {subject}?\nI want to get into {subject}.\nIs there a key to {subject}?")),
    (Phrases("{Subject} is {years} years old.\n{Subject} has stood for {years} years."), ("years",), Phrases("How old is {subject}?\nWhat is the age of {subject}?\nHow long has {subject} been there?\nIs {subject} old?\nDo you know how old {subject} is?\n~ Since when does {subject} stand?\nWhen was {subject} built?\nSince when does {subject} exist?\nSince when is {subject} here?\nHow long does {subject} stand?\nFor how long has {subject} been standing?\nWhen does {subject} date from?")),
]
TOPIC_GENERAL = Phrases("""
    What do you know about {subject}?
    Tell me about {subject}.
    What about {subject}?
    What can you tell me about {subject}?
    Have you been to {subject}?
    ~ Do you know {subject}?
    Do you know anything about {subject}?
    What is {subject}?
    I want to know more about {subject}.
    Can you tell me something about {subject}?
    ~ And {subject}?
    Let us talk about {subject}.
    What do people say about {subject}?
    Do you know something about {subject}?
    Is there anything to know about {subject}?
    What is it with {subject}?
""")
TOPIC_UNKNOWN = Phrases("""
    I know nothing about {subject}.
    I don't know anything about {subject}.
    {Subject}? I don't know.
    I couldn't tell you. I don't know {subject}.
    I don't know, I've never been to {subject}.
    No idea. I don't know much about {subject}.
    I can't help you with {subject}, I don't know.
""")


def topic(maker: Maker) -> tuple[dict[str, str], str, tuple[str, ...], Phrases]:
    """A free fact about a building: its slots, its sentence, the needed slots, and the questions that fit."""
    sentences, needed, questions = TOPIC_FRAMES[int(maker.rng.random() * len(TOPIC_FRAMES))]
    slots = {
        "subject": maker.building(),
        "day": maker.pick(words.DAYS),
        "time": maker.pick(words.TIMES),
        "name": maker.person(),
        "place": maker.place(),
        "direction": maker.pick(words.DIRECTIONS),
        "beasts": maker.pick(words.BEASTS),
        "spot": maker.spot(),
        "years": str(maker.rng.randint(2, 900)),
    }
    return slots, sentences.pick(maker.rng, slots), needed, questions


KINDS: tuple[Kind, ...] = (RELATION, RUMOUR, QUEST, AGE, ORIGIN, LIKE, FEAR, PET, DEBT, LOSS, DRINK, DREAM, HOURS, WORKPLACE, COMPANY, ACQUAINTANCE, PAST)
KIND_WEIGHTS = (4.0, 3.5, 2.5, 0.8, 1.0, 0.8, 0.8, 0.6, 0.5, 0.6, 0.5, 0.6, 0.5, 0.8, 0.8, 2.0, 0.9)
