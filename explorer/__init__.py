"""Why attention? Small models, trained on demand, that answer by measurement.

A map, in the order in which one thing rests on another: `config` says what one training run is; `tasks` makes the
sequences and knows the closed forms; `models` are the networks; `training` trains one; `experiment` runs one config or
many (start reading there); `store` keeps results; `jobs` decides who computes what when; `measures` opens a trained
model into tables; `findings` puts a table into a sentence; `figures` draws tables; `ui` and the top-level `pages` show
them; `__main__` is the command line.
"""
