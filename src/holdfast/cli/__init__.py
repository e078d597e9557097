"""The command `holdfast`.

| file | purpose |
|---|---|
| main.py | the commands and their options |
"""
