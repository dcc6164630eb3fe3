"""Who looks in: the logins of people, how often they may be tried, and the second factor.

In the order in which somebody meets them: `throttling` (passwords), `backends`, `sessions`, `one_time_codes`,
`recovery_codes`, `proving` and `enrolling` (the second factor), `middleware` (what is open without it), `forms`,
`pages`, `views`, `history`, `admin`, `tasks` (what is forgotten).
"""
