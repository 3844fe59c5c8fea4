"""Streamlit parts that the pages share. With explorer/app.py and pages/, the only code that imports streamlit."""
