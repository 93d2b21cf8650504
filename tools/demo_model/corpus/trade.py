"""Buying and selling: prices, stock, haggling. Phrases with ``{one}``, ``{many}``, ``{bare}`` and ``{price}``."""

from __future__ import annotations

from .grammar import Phrases

PRICE_QUESTIONS = Phrases("""
    What does {one} cost?
    How much is {one}?
    How much for {one}?
    What do you want for {one}?
    How much do you charge for {one}?
    ~ What's the price of {one}?
    How much are the {many}?
    What do {many} cost?
    What would {one} cost me?
    I'd like {one}. How much?
    How much does {one} cost?
    And {one}? How much?
    What is the price for {one}?
    ~ How expensive is {one}?
    What do I owe you for {one}?
    I need {one}. What's the price?
    Price of {one}?
    {One}, how much?
    How much for the {bare}?
    How much is the {bare}?
    What do you ask for {one}?
    ~ Tell me the price of {one}.
    Could you tell me what {one} costs?
    What does the {bare} cost?
    {bare} price?
    How many coins for {one}?
    What is {one} worth to you?
    And how much would {one} be?
    For how much do you sell {many}?
    ~ Is {one} expensive?
    How expensive are {many}?
    How expensive is the {bare}?
    Are {many} expensive?
    Is the {bare} expensive?
    Are your {many} expensive?
    What's {one}?
    How much would {one} be?
    What price for {one}?
    What is your price for {one}?
    I want to know the price of {one}.
    How much must I pay for {one}?
    What must I pay for {one}?
    How much money for {one}?
    Give me a price for {one}.
    What are the {many}?
    How much would you ask for {one}?
    cost of {one}?
    How much are {many}?
    How many {currency} for {one}?
""")
PRICE_FOLLOW_UPS = Phrases("""
    And {one}?
    And the {bare}?
    What about {one}?
    And for {one}?
    How about {one}?
    ~ And {many}?
    And what about the {bare}?
    {One} too?
""")
PRICE_ANSWERS = Phrases("""
    {One} costs {price}.
    {One} costs {price}.
    {One} is {price}.
    {Price} for {one}.
    {Price}.
    That's {price}.
    For {one} I ask {price}.
    I want {price} for {one}.
    {Price} for {one}, [and not a coin less|and it's worth it|fair and square|if you want it].
    {One}? {Price}.
    {One} will cost you {price}.
    You can have {one} for {price}.
    That will be {price}[, please|].
    {Price}, [and it's a good one|best you can get|as it says on the board].
    It costs {price}. [Do you want one?|Shall I wrap it up?|Take it or leave it.|]
""")
STOCK_QUESTIONS = Phrases("""
    What do you sell?
    What can I buy here?
    What do you have for sale?
    Show me your wares.
    What are you selling?
    ~ Do you have anything for sale?
    What do you offer?
    What have you got?
    I'd like to buy something.
    What goods do you have?
    Can I see your goods?
    What's for sale?
    Are you selling anything?
    ~ What can you sell me?
    I want to buy something. What do you have?
    Let me see what you have.
    Got anything to sell?
    What do you have [today|in stock]?
    Have you anything for sale?
    Have you got anything for sale?
    Anything for sale?
    Is there anything for sale?
    Do you have something for sale?
    Do you have something to sell?
    Do you have any wares?
    Do you have goods for sale?
    What have you got for sale?
    What wares do you have?
    What are your wares?
    Do you sell anything?
    Do you sell things?
    What are your prices?
    What have you got to eat?
    What can I get here?
    I have some money to spend.
    Sell me something.
    Tell me what you sell.
    What sort of things do you sell?
""")
STOCK_ANSWERS = Phrases("""
    I sell {list_for}.
    I have {list_for}.
    {list_for_capital}. [What would you like?|Anything for you?|]
    You can have {list_for}.
    I have {list_many}.
    I sell {list_many}.
    {list_many_capital}[, that's all|, all of it good|]. [What do you need?|]
    I've got {list_many}[ today|]. [Interested?|]
""")
STOCK_EMPTY = Phrases("""
    I don't sell anything.
    I have nothing to sell.
    Nothing. I'm no merchant.
    I have no wares[, sorry|, friend|].
    I don't have anything for sale.
    This is no shop. I don't sell things.
""")
HAVE_QUESTIONS = Phrases("""
    Do you have {one}?
    Do you sell {many}?
    Have you got {many}?
    I'm looking for {one}.
    I need {one}.
    ~ Can I get {one} here?
    Do you have any {many}?
    Got {one} for me?
    Is there {one} for sale?
    Can you sell me {one}?
    I want to buy {one}.
    Have you {one} for me?
    Can I get {many}?
    Can I get {one}?
    Do you have {many} here?
    Where can I get {one} here?
    Can I buy {one} here?
    I could use {one}.
    I'd like {one}.
    Do you have {one} for sale?
    Are there {many} here?
    Any {many}?
    I would like to buy {one}.
""")
HAVE_ANSWERS = Phrases("""
    Yes, {one} for {price}.
    [Of course|Certainly|Yes|Aye]. {One} costs {price}.
    I do. {Price} for {one}.
    I have {one} for {price}.
    You came to the right place. {One} is {price}.
    Yes. {Price}, and it's yours.
""")
NOT_SOLD = Phrases("""
    I don't sell {many}.
    I don't have {many}[, sorry|, I'm afraid|].
    No {many} here[, sorry|, friend|].
    I don't have {one}.
    {Many}? I don't sell those.
    I have no {many}.
    I'm afraid I don't have {one}.
    You won't find {many} here. I don't sell them.
    Sorry, I don't sell {many}.
""")
NOT_SOLD_BUT = Phrases("""
    I don't sell {many}, but I have {other_many}.
    No {many} here. I only sell {other_many}.
    I don't have {one}. How about {other_one} for {other_price}?
    I have no {many}, only {other_many}.
    Sorry, I don't sell {many}. I can offer you {other_one}.
""")
BUY = Phrases("""
    I'll take {one}.
    I'd like to buy {one}.
    Give me {one}, please.
    {One}, please.
    I'll have {one}.
    ~ One {bare}, please.
    Sell me {one}.
    I take the {bare}.
    Then I'll buy {one}.
    Let me have {one}.
    Wrap up {one} for me.
    I want {one}.
    One {bare}.
    One {bare} for me.
    Just one {bare}.
    I'll take one {bare}, please.
    One of your {many}, please.
    I'll buy {one}.
    Can I have {one}?
    I would like {one}, please.
    Okay, {one}.
    I take {one}.
""")
BUY_ANSWERS = Phrases("""
    That will be {price}. [Here you are.|Thank you.|]
    Here you are. {Price}, please.
    {Price}, then. [It's yours.|A good choice.|]
    A good choice. That makes {price}.
    {One} for {price}. [Thank you.|Use it well.|There you go.]
    Done. {Price} and it's yours.
    Certainly. {Price}, please.
""")
HAGGLE = Phrases("""
    Can you make it cheaper?
    That's too expensive.
    That is too much.
    I'll give you {offer} for {one}.
    How about {offer}?
    ~ Would you take {offer}?
    Can't you lower the price?
    I only have {offer}.
    {Offer}, and not more.
    Give me a better price.
    Is that your best price?
    What about {offer} for the {bare}?
    Come on, {offer}!
    ~ That's robbery! Give me a discount.
    Would you sell {one} for {offer}?
    Would {offer} do?
    Take {offer}.
    Will you take {offer}?
    I'd take it for {offer}.
    That's robbery!
    What a robbery! That's too much.
    Is there a discount?
    Can I get a discount?
    How about a discount?
    I want a discount.
    Too expensive!
    I can pay {offer}.
    I offer {offer}.
    Make it {offer}.
    So much? Too expensive.
    {Offer}?
    Do you accept {offer}?
    Let's say {offer}.
""")
HAGGLE_ANSWERS = Phrases("""
    No, {price} is my price.
    {Price}, and not a coin less.
    The price is {price}. Take it or leave it.
    I have to live too. {Price}.
    {Price} is fair for {one}.
    I can't go below {price}.
    For {one}? {Price}, as I said.
    Sorry, it stays at {price}.
    Come back when you have {price}.
    You won't get {one} cheaper anywhere. {Price}.
    Nice try, but it's {price}.
""")
