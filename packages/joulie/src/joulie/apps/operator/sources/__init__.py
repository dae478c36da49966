"""Sources of power and utilisation, and the table of all of them; `joulie.apps.operator.power` reads them."""
